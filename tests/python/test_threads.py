"""One Plan or Step in several threads, on the CPU, where a call leaves the interpreter's lock: right, or refused."""

import os
import signal
import threading

import numpy as np
import pytest

import flashlatent
from oracle import Case


def cases():
    return [Case([1500, 700, 0, 77], heads=16, d=128, v_dim=128, seed=seed) for seed in (0, 1)]


def plan_of(case):
    problem = flashlatent.Problem(batch=4, heads=16, softmax_scale=case.scale, max_pages=case.block_table.shape[1],
                                  qk_dim=128, v_dim=128, page_size=16, dtype="fp16")
    plan = flashlatent.Plan(problem)
    plan.schedule(case.cache_seqlens)
    return plan


def in_threads(calls, repeats=25):
    """Calls each function in a thread of its own; what they raised."""
    errors = []

    def repeat(call):
        try:
            for _ in range(repeats):
                call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("kind", ["plan", "step", "stateless"])
def test_decode_in_threads(kind):
    both = cases()
    if kind == "plan":
        plan = plan_of(both[0])
        decode = lambda case: plan.decode(*case.arguments())
    else:
        step = flashlatent.Step(stateless=kind == "stateless")
        decode = lambda case: step.decode(*case.arguments(), **case.options())
    expected = [decode(case) for case in both]

    def check(i):
        for got, right in zip(decode(both[i]), expected[i]):
            np.testing.assert_array_equal(got, right)

    assert in_threads([lambda i=i: check(i % 2) for i in range(4)]) == []


def test_no_plan_is_written_while_it_is_read():
    case = cases()[0]
    plan = plan_of(case)
    rng = np.random.default_rng(0)
    refusals = []

    def schedule():
        try:
            plan.schedule(rng.permutation(case.cache_seqlens))
        except flashlatent.InvalidArgumentError as error:
            refusals.append(str(error))

    assert in_threads([lambda: case.check(*plan.decode(*case.arguments())), schedule]) == []
    for text in refusals:
        assert "the plan of decode b=4" in text and "is in use by a decode call of another thread; plan=" in text
    plan.schedule(case.cache_seqlens)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_has_no_calls_of_its_parents_threads():
    case = cases()[0]
    plan = plan_of(case)
    ended = threading.Event()

    def decode():
        while not ended.is_set():
            plan.decode(*case.arguments())

    thread = threading.Thread(target=decode)
    thread.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                try:
                    plan.schedule(case.cache_seqlens)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        ended.set()
        thread.join()
