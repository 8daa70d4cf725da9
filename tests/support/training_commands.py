"""Commands of training in this process, whose errors are raised rather than printed."""

from keras_vit.common.commands import find


def main(arguments):
    name, *rest = arguments
    return find("training", name)(rest)


def parse(name, arguments):
    return find("training", name).parse(arguments)
