"""Kernels in cuobjdump's listings of machine code for sm_90, for the scripts that look at it."""

import argparse
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/")
HIGH_WORD = re.compile(r"/\* 0x([0-9a-f]{16}) \*/")
PREDICATE = re.compile(r"^@!?U?P[T\d]+\s+")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


class Instruction(NamedTuple):
    address: int
    text: str  # without its predicate
    predicated: bool
    written: int  # the scoreboard that tells of its result
    waits: int  # a bit for each scoreboard that it waits for


def decode(address, text, high):
    # Control bits 105 to 121 of 128: stall 4, yield 1, written scoreboard 3, read scoreboard 3, waits 6.
    control = high >> 41
    bare = PREDICATE.sub("", text)
    return Instruction(address, bare, bare != text, control >> 5 & 7, control >> 11 & 63)


def kernels(listing):
    """The name and the instructions of each kernel in cuobjdump's listing."""
    name, instructions = None, []
    lines = iter(listing.splitlines())
    for line in lines:
        if "Function : " in line:
            if name:
                yield name, instructions
            name, instructions = line.split("Function : ")[1].strip(), []
        elif found := INSTRUCTION.match(line):
            high = int(HIGH_WORD.search(next(lines)).group(1), 16)
            instructions.append(decode(int(found.group(1), 16), found.group(2), high))
    if name:
        yield name, instructions


def successors(instructions):
    """Where each instruction may lead, as places in the list."""
    places = {x.address: i for i, x in enumerate(instructions)}
    for i, x in enumerate(instructions):
        after = [i + 1] if i + 1 < len(instructions) else []
        if x.text.startswith(("EXIT", "RET")):
            yield after if x.predicated else []
        elif x.text.startswith("BRA") and (target := TARGET.search(x.text)):
            conditional = x.predicated or "BRA.DIV" in x.text or re.match(r"BRA\S*\s+!?U?P\d", x.text)
            yield [places[int(target.group(1), 16)]] + (after if conditional else [])
        else:
            yield after


def run_script(doc, inspect):
    """A script's command line, which `doc` describes. `inspect`(instructions) gives a line for each thing to
    report of a kernel. Returns the exit status."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--cuobjdump")
    parser.add_argument("--expect")
    parser.add_argument("objects", nargs="*")
    args = parser.parse_args()
    if args.help:
        print(doc.strip())
        return 0
    cuobjdump = args.cuobjdump or shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
    if not cuobjdump:
        print("cuobjdump is neither in PATH nor in /usr/local/cuda/bin; name it by --cuobjdump", file=sys.stderr)
        return 2
    if not args.objects:
        print("no OBJECT; see --help", file=sys.stderr)
        return 2
    try:
        expected = re.compile(args.expect) if args.expect else None
    except re.error as error:
        print(f"--expect is '{args.expect}': {error}; a regular expression is accepted", file=sys.stderr)
        return 2
    paths = []
    for name in args.objects:
        path = pathlib.Path(name)
        found = sorted(path.rglob("*.cu.o")) if path.is_dir() else [path]
        if not found or not all(p.is_file() for p in found):
            print(f"OBJECT is '{name}': neither a file nor a folder with *.cu.o", file=sys.stderr)
            return 2
        paths += found

    count, wrong, met = 0, 0, False
    first = {}  # of each kernel the object that has it
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for path, error, results in pool.map(_inspect, [inspect] * len(paths), [cuobjdump] * len(paths), paths):
            if error:
                print(error, file=sys.stderr)
                wrong += 1
            for kernel, lines in results:
                count += 1
                if first.setdefault(kernel, path) != path:
                    wrong += 1
                    print(f"{path}: {kernel}: is in {first[kernel]}, too; a header instantiates it")
                is_expected = bool(expected and expected.search(kernel))
                met = met or is_expected
                if bool(lines) == is_expected:
                    continue
                wrong += 1
                print(f"{path}: {kernel}" + ("" if lines else ": nothing is reported, which is expected"))
                for line in lines:
                    print(f"  {line}")
    if expected and not met:
        print(f"no kernel matches --expect '{args.expect}'")
        wrong += 1
    print(f"{count} kernels in {len(paths)} files: {'nothing unexpected' if not wrong else f'{wrong} wrong'}")
    return 1 if wrong or not count else 0


def _inspect(inspect, cuobjdump, path):
    done = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=False)
    if done.returncode:
        return path, f"{cuobjdump} -sass {path}: {done.stderr.strip() or 'failed'}", []
    return path, None, [(name, list(inspect(code))) for name, code in kernels(done.stdout)]
