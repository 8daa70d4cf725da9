"""The program `keras-vit`: `python -m keras_vit` and the console script."""

from keras_vit.common.commands import command_line

if __name__ == "__main__":
    command_line()
