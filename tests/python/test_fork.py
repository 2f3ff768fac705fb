"""Children made by fork, whose parent has used several threads."""

import multiprocessing
import os
import signal
import warnings

import numpy as np
import pytest

import flashlatent

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
    # Python 3.12 warns of any fork beside threads, which is what is tested.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def results(threads=4):
    """What decode, a step and the operations on caches give."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((4, 1, 8, 64)).astype(np.float16)
    cache = rng.standard_normal((32, 16, 1, 64)).astype(np.float16)
    table = rng.permutation(32).astype(np.int32).reshape(4, 8)
    lengths = np.array([128, 40, 9, 100], np.int32)
    out, lse = flashlatent.decode(q, cache, table, lengths, softmax_scale=0.125, v_dim=32, threads=threads)
    keys, values = flashlatent.gather_kv(flashlatent.KeyValueCache(cache, cache), table,
                                         np.array([0, 128, 168, 177, 277], np.int32), rows=277, threads=threads)
    kv_out, kv_lse = flashlatent.decode_kv(q, cache, cache, table, lengths, softmax_scale=0.125, threads=threads)
    return [np.array(a).tobytes() for a in (out, lse, keys, values, kv_out, kv_lse)]


def test_os_fork():
    expected = results()
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)  # ends a child that hangs
        os._exit(0 if results() == expected and results() == expected else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def in_child(_):
    signal.alarm(120)
    return results()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method):
    expected = results()
    with multiprocessing.get_context(method).Pool(2) as pool:
        for got in pool.map_async(in_child, range(4)).get(timeout=240):
            assert got == expected
