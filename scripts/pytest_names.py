"""A plugin of pytest for scripts/gpu_check: says of each test, in a line of its own, that it begins."""


def pytest_configure(config):
    config.pluginmanager.register(_Names(config), "names-of-tests")


class _Names:
    def __init__(self, config):
        self.config = config

    def pytest_runtest_logstart(self, nodeid):
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write(f"\ncase {nodeid}\n", flush=True)
