"""The reason in the message of a TensorFlow error."""

import re

# What the messages contain beside the reason: names of nodes, and whole lines.
_NODES = re.compile(
    r"\{\{.*?\}\} ?|\[\[.*?\]\]| ?\[Op:.*|^\s*\(\d+\) [A-Z_]+: +"
    r"|Error in user-defined function passed to .*?: Iterator::\S+ "
)
_HEADINGS = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces .*|\d+ root error.*|"
    # At times the function of a frame has no name, as where threads trace it at once.
    r'File ".*", line \d+, in.*|'
)
# Failed assertions, whose words and values follow in lines or in brackets.
_IN_EAGER_MODE = re.compile(
    r"Expected '.*?' to be true\. Summarized data: (.*)", re.DOTALL
)
_VALUE_IN_EAGER_MODE = re.compile(r"^(?:b['\"])?(.*?)['\"]?$", re.MULTILINE)
_IN_A_GRAPH = re.compile(r"assertion failed: \[(.*)\]")


def reason_of(error: Exception) -> str:
    """Why it failed, in one line: no nodes of the graph, no stack traces."""
    lines = (_NODES.sub("", line).strip() for line in str(error).splitlines())
    reasons = [line for line in lines if not _HEADINGS.fullmatch(line)]
    if not reasons:
        return type(error).__name__
    if asserted := _IN_EAGER_MODE.fullmatch("\n".join(reasons)):
        return " ".join(_VALUE_IN_EAGER_MODE.findall(asserted[1]))
    if asserted := _IN_A_GRAPH.fullmatch(reasons[0]):
        return asserted[1].replace("] [", " ")
    return reasons[0]
