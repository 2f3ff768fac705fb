"""The option check_inputs: lengths, page numbers and the like out of range are refused, before anything is written."""

import os
import subprocess
import sys

import numpy as np
import pytest

import flashlatent
from kv_oracle import KvCase
from oracle import Case

LATENT = [
    ("cache_seqlens\\[0\\] is 1000; request 0 may have 0 to 48 tokens", "cache_seqlens", 0, 1000),
    ("cache_seqlens\\[1\\] is -1; request 1", "cache_seqlens", 1, -1),
    ("block_table\\[0, 1\\] is 99, where tokens of request 0 are, and the cache has 6 pages", "block_table", (0, 1), 99),
]


def changed(case, name, place, value):
    """The case's arguments, one number of one of which is another."""
    arguments = dict(zip(["q", "kv_cache", "block_table", "cache_seqlens"], case.arguments()))
    arguments[name] = arguments[name].copy()
    arguments[name][place] = value
    return {**arguments, **case.options()}


def outputs(case):
    out = np.full((*case.q.shape[:-1], case.v_dim), 7, np.float16)
    return {"out": out, "lse": np.full((case.q.shape[0], case.q.shape[2], case.q.shape[1]), 7, np.float32)}


def refused(match, call, **arguments):
    with pytest.raises(flashlatent.InvalidArgumentError, match=match) as raised:
        call(**arguments)
    assert isinstance(raised.value, flashlatent.FlashLatentError) and "\n" not in str(raised.value)
    for name in ("out", "lse"):
        assert name not in arguments or (arguments[name] == 7).all()


@pytest.mark.parametrize("match, name, place, value", LATENT)
def test_one_call_checks_arrays_on_the_cpu(match, name, place, value):
    case = Case([20, 3], page_size=16)
    arguments = changed(case, name, place, value)
    refused(match, flashlatent.decode, **arguments, **outputs(case))
    refused(match, flashlatent.decode, **arguments, **outputs(case), check_inputs=True)
    flashlatent.decode(**arguments, check_inputs=False)


@pytest.mark.parametrize("match, name, place, value", LATENT)
def test_step_and_plan_check_when_asked(match, name, place, value):
    case = Case([20, 3], page_size=16)
    arguments = changed(case, name, place, value)
    step = flashlatent.Step()
    step.decode(**arguments)
    for check_inputs in (True, None):
        refused(match, step.decode, **arguments, **outputs(case), check_inputs=check_inputs)
    tensors = {key: arguments[key] for key in ("q", "kv_cache", "block_table", "cache_seqlens")}
    plan = flashlatent.Plan(flashlatent.Problem.of_arrays(*case.arguments()[:3], **case.options()))
    plan.schedule(tensors["cache_seqlens"])
    plan.decode(**tensors)
    refused(match, plan.decode, **tensors, **outputs(case), check_inputs=True)


def test_unchecked_lengths_are_clamped_and_pages_skipped():
    case = Case([48, 3], page_size=16)
    case.block_table = case.block_table[:, :3].copy()
    case.cache_seqlens[0] = 1000
    out, lse = flashlatent.decode(*case.arguments(), **case.options(), check_inputs=False)
    case.cache_seqlens[0] = 48
    case.check(out, lse)
    for page in (99, -1):
        case.block_table[0, 1] = page
        out, lse = flashlatent.decode(*case.arguments(), **case.options(), check_inputs=False)
        case.check(out, lse)
    case.check(*flashlatent.decode(*case.arguments(), **case.options()))  # a hole is legal


def test_ragged_queries():
    case = Case([20, 3], page_size=16)
    q, kv_cache, table, lengths = case.arguments()
    for begins, match in (([0, 1, 3], "cu_seqlens_q\\[2\\] is 3, where request 1 ends; 2 is accepted"),
                          ([0, 2, 1], "cu_seqlens_q\\[2\\] is 1, where request 1 ends; 2 is accepted"),
                          ([1, 1, 2], "cu_seqlens_q\\[0\\] is 1, where request 0 begins; 0 is accepted")):
        refused(match, flashlatent.decode, q=q[:, 0], kv_cache=kv_cache, block_table=table, cache_seqlens=lengths,
                cu_seqlens_q=np.array(begins, np.int32), **case.options())


def test_sparse():
    case = Case([20, 3], page_size=16)
    indices = np.full((2, 1, 4), 1 << 30, np.int32)  # out of range: legal
    arguments = {"q": case.q, "kv_cache": case.kv_cache, "indices": indices, **case.options()}
    flashlatent.decode(**arguments, topk_length=np.array([4, 0], np.int32))
    for length in (5, -1):
        refused(f"topk_length\\[1\\] is {length}; request 1 may have 0 to topk = 4", flashlatent.decode,
                **arguments, topk_length=np.array([4, length], np.int32))
        flashlatent.decode(**arguments, topk_length=np.array([4, length], np.int32), check_inputs=False)


def test_keys_and_values():
    case = KvCase([20, 3], dtype="fp16")
    names = ["q", "key_cache", "value_cache", "block_table", "cache_seqlens"]
    arguments = {**dict(zip(names, case.arrays())), "softmax_scale": case.scale}
    flashlatent.decode_kv(**arguments)
    arguments["cache_seqlens"] = np.array([20, 10**6], np.int32)
    refused("cache_seqlens\\[1\\] is 1000000; request 1", flashlatent.decode_kv, **arguments)
    refused("cache_seqlens\\[1\\]", flashlatent.Step().decode_kv, **arguments, check_inputs=True)
    flashlatent.decode_kv(**arguments, check_inputs=False)
    flashlatent.Step().decode_kv(**arguments)


def test_steps_and_plans_that_check_every_call():
    case = Case([20, 3], page_size=16)
    match, name, place, value = LATENT[0]
    arguments = changed(case, name, place, value)
    tensors = {key: arguments[key] for key in ("q", "kv_cache", "block_table", "cache_seqlens")}
    problem = flashlatent.Problem.of_arrays(*case.arguments()[:3], **case.options())
    for check_inputs in (True, None):
        refused(match, flashlatent.Step(check_inputs=check_inputs).decode, **arguments, **outputs(case))
        refused(match, flashlatent.Step(check_inputs=check_inputs).decode, **arguments, **outputs(case), check_inputs=False)
        for plan in (flashlatent.Plan(problem, check_inputs=check_inputs),
                     flashlatent.Plan.like(problem, case.q, check_inputs=check_inputs)):
            plan.schedule(tensors["cache_seqlens"])
            refused(match, plan.decode, **tensors, **outputs(case))
            plan.decode(*case.arguments())
    with pytest.raises(flashlatent.ArgumentTypeError, match="check_inputs"):
        flashlatent.Step(check_inputs="yes")


# A process reads the variable once.
PROCESS = """
import sys
import numpy as np
import flashlatent

def call(length, **options):
    step = flashlatent.Step()
    return step.decode(np.zeros((1, 1, 2, 576), np.float16), np.zeros((3, 16, 1, 576), np.float16), np.zeros((1, 2), np.int32),
                       np.array([length], np.int32), softmax_scale=0.1, **options)

def prefill(length):
    flashlatent.sparse_prefill(np.zeros((1, 2, 576), np.float16), np.zeros((9, 1, 576), np.float16), np.zeros((1, 1, 4), np.int32),
                               topk_length=np.array([length], np.int32), softmax_scale=0.1, check_inputs=False)

for one in (call, prefill):
    for length in (3, 33):
        try:
            one(length)
            print("right")
        except flashlatent.InvalidArgumentError as error:
            print(error)
"""


@pytest.mark.parametrize("value, lines", [
    (None, ["right"] * 4), ("", ["right"] * 4), ("0", ["right"] * 4),
    ("1", ["right", "cache_seqlens[0] is 33; request 0 may have 0 to 32 tokens", "right", "topk_length[0] is 33; "]),
    ("yes", ["FLASHLATENT_CHECK_INPUTS is 'yes'; 0 and 1 are accepted"] * 4)])
def test_a_process_that_checks_every_call(value, lines):
    environment = {name: text for name, text in os.environ.items() if name != "FLASHLATENT_CHECK_INPUTS"}
    if value is not None:
        environment["FLASHLATENT_CHECK_INPUTS"] = value
    done = subprocess.run([sys.executable, "-c", PROCESS], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(lines) and all(text.startswith(line) for text, line in zip(said, lines)), done.stdout
