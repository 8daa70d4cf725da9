"""The pytest fixture for users' own tests."""

import socket

pytest_plugins = ["pytester"]

PLUGIN = "-pserving.local.pytest_plugin"
TESTS = """
    import urllib.request, json
    from serving.local.status_errors import StartError

    MODELS = {{"double": {folder!r}}}

    def ask(server):
        url = server.rest_url + "/v1/models/double:predict"
        with urllib.request.urlopen(url, b'{{"instances": [1.0]}}') as answer:
            return json.load(answer)

    def test_one(local_server):
        assert ask(local_server(MODELS)) == {{"predictions": [2.0]}}

    def test_the_same_models_are_served_once(local_server):
        assert local_server(MODELS) is local_server(MODELS)
        print("rest", local_server(MODELS).rest_url)

    def test_other_flags_are_another_server(local_server):
        other = local_server(MODELS, rest_api_enable_cors_support=True)
        assert other.rest_url != local_server(MODELS).rest_url
        assert ask(other) == {{"predictions": [2.0]}}

    def test_a_wrong_path_is_reported(local_server):
        import pytest
        with pytest.raises(StartError, match="No such file"):
            local_server({{"double": "/nope"}})
"""


def test_the_fixture_serves_and_stops_with_the_session(pytester, base_path):
    pytester.makepyfile(TESTS.format(folder=str(base_path)))
    result = pytester.runpytest_inprocess(PLUGIN, "-s")
    result.assert_outcomes(passed=4)
    (line,) = (line for line in result.outlines if "rest http" in line)
    port = int(line.rpartition(":")[2].rstrip("."))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
