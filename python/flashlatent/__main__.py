"""python -m flashlatent: backends, devices and kernels."""

import argparse

from . import _program, info


def main(arguments=None):
    """The program; returns its exit status."""
    argparse.ArgumentParser(prog="python -m flashlatent", description=__doc__).parse_args(arguments)
    found = info()
    print(f"flashlatent {found['version']} (source tree {found['source_tree']})")
    for name, backend in found["backends"].items():
        print(f"\nbackend {name}: {'' if backend['available'] else 'not '}available")
        if not backend["available"]:
            print(f"  {backend['reason']}")
        for device in backend["devices"]:
            units = "threads" if name == "cpu" else "multiprocessors"
            print(f"  device {device['index']}: {device['name']}, {device['units']} {units}, {device['detail']}")
        for kernel, takes in backend["kernels"].items():
            print(f"  kernel {kernel}: {takes}")
    return 0


if __name__ == "__main__":
    _program.leave(main)
