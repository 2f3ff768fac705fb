"""ContextParallel: decode over a process group."""

import functools
from typing import Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import torch as operators
from .._errors import InvalidArgumentError
from .._native import Step
from . import _checks, _exchange
from ._message import Message
from ._tokens import Interleaving

EXCHANGES = ("auto", "all_to_all", "all_gather", "one_sided")


class Pending:
    """A call whose exchange is under way. wait() returns (out, lse); work enqueued before wait() overlaps the
    exchange."""

    def __init__(self, finish):
        self._finish = finish

    def wait(self) -> Tuple[Tensor, Tensor]:
        """Returns (out, lse); work enqueued afterwards may read them."""
        return self._finish()


class ContextParallel:
    """Decode with contexts and query heads spread over a group's ranks.

    group     the ranks; None: the default group
    run       tokens in a row that one rank holds (Interleaving)
    exchange  'all_to_all', 'all_gather' or 'auto', which takes the one that was measured to be the faster;
              'one_sided': GPUs write queries and results to each other's memory, see docs/distributed.md
    max_rows  of 'one_sided': the most query rows of a rank's own heads, batch * s_q * heads
    v_dim     of 'one_sided': elements of an output
    check_inputs  True: ranks compare these arguments now, and those of every call that does not say check_inputs=False

    Every rank makes the same calls in the same order, with the same check_inputs. Calls come from one thread and one
    stream. A rank whose arguments are refused leaves the others waiting, and ranks whose calls differ get wrong results or
    an error of the exchange. With check_inputs=True all ranks refuse such calls, and each says which rank was refused and
    why.
    """

    def __init__(self, group=None, *, run: int = 1, exchange: str = "auto", max_rows: Optional[int] = None,
                 v_dim: int = 512, check_inputs: bool = False):
        self._group = dist.group.WORLD if group is None else group
        if dist.get_rank(self._group) < 0:
            raise InvalidArgumentError("group has not this process as a member; a group that has is expected")
        rank, world = dist.get_rank(self._group), dist.get_world_size(self._group)
        # Gloo takes tensors of the CPU, for which no GPU waits.
        self._small_on_cpu = "cpu:" in str(dist.get_backend_config(self._group))
        self._check_inputs = check_inputs is not False
        one_sided = exchange == "one_sided" and world > 1

        def prepare():
            _checks.flag("check_inputs", check_inputs)
            if exchange not in EXCHANGES:
                raise InvalidArgumentError(f"exchange is {exchange!r}; {', '.join(EXCHANGES)} are accepted")
            tokens = Interleaving(rank, world, _checks.whole_number("run", run, 1, 2**20))
            if not one_sided:
                return tokens, None
            if max_rows is None:
                raise InvalidArgumentError("exchange is 'one_sided' and max_rows is missing; the most query rows of a "
                                           "rank's heads are expected")
            extents = (_checks.whole_number(name, value, 1, most) for name, value, most in
                       (("max_rows", max_rows, 2**30), ("v_dim", v_dim, 4096)))
            device = torch.device("cuda", torch.cuda.current_device())
            return tokens, _exchange.PeerMemory(self._group, device, *extents)

        # With the one-sided exchange ranks always wait for each other here.
        agrees = self._check_inputs or one_sided or _checks.environment_checks()
        agreement = self._agreement(None) if world > 1 and agrees else None
        if agreement is None:
            self.tokens, self._peers = prepare()
        else:
            numbers = {"run": run, "max_rows": max_rows, "v_dim": v_dim, "check_inputs": check_inputs}
            self.tokens, self._peers = agreement.after(
                prepare, _checks.fields_of("ContextParallel", exchange, EXCHANGES, numbers))
        if self._peers is not None:
            self._peers.meet()
        self._exchange = exchange
        self._step = Step(stateless=True)
        self._overlapped = False  # an exchange is on the other stream, and nothing on this stream waits for it yet

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.tokens.rank

    @property
    def world(self) -> int:
        """The number of ranks in the group."""
        return self.tokens.world

    def gather_queries(self, q: Tensor) -> Tensor:
        """The queries of all ranks' heads, rank by rank: q (batch, s_q, h, d), or ragged (total, h, d), with h * world
        heads. A q with heads outermost, as a batched product over heads writes it, is not copied."""
        return self._gathering(q)()

    def _gathering(self, q):
        """Returns the exchange of gather_queries(), after everything that can fail on one rank."""
        if self.world == 1:
            return lambda: q
        if self._peers is not None and self._peers.has_room_for(q):
            gather = self._peers.gathering(q)

            def by_peers():
                self._follow_overlapped(q.device)
                return gather()

            return by_peers
        sent = q.movedim(-2, 0).contiguous()
        received = sent.new_empty((self.world * sent.shape[0], *sent.shape[1:]))
        sent_bytes, received_bytes = _bytes(sent), _bytes(received)

        def by_all_gather():
            dist.all_gather_into_tensor(received_bytes, sent_bytes, group=self._group)
            gathered = received.movedim(0, -2)
            # Kernels want the rows of a tile one after another.
            one_token = q.dim() == 4 and q.shape[1] == 1
            return gathered if one_token else gathered.contiguous()

        return by_all_gather

    def plan(self, q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
             cache_seqlens: Optional[Tensor] = None, *, all_heads: bool = False, check_inputs: Optional[bool] = None,
             **options) -> Tensor:
        """The plan of a step for decode() with these shapes and options, as flashlatent.torch.plan(). Ranks exchange
        nothing except with check_inputs (as in decode()): then, if one rank is refused, all ranks raise."""
        numbers = {"v_dim": options.get("v_dim", 512), "all_heads": all_heads}
        return self._planned("plan", q, check_inputs, numbers, options,
                             lambda: operators.plan(self._of_all_heads(q, all_heads), kv_cache, block_table, cache_seqlens,
                                                    **self._with_shard(options)))

    def plan_kv(self, q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor,
                *, all_heads: bool = False, check_inputs: Optional[bool] = None, **options) -> Tensor:
        """As plan(), for decode_kv()."""
        kv_heads, v_dim = _checks.dims_of_key_values(key_cache, value_cache)
        numbers = {"v_dim": v_dim, "KV heads": kv_heads, "all_heads": all_heads}
        return self._planned("plan_kv", q, check_inputs, numbers, options,
                             lambda: operators.plan_kv(self._of_all_heads(q, all_heads), key_cache, value_cache, block_table,
                                                       cache_seqlens, **self._with_shard(options)))

    def _planned(self, name, q, check_inputs, numbers, options, make):
        agreement = self._agreement_of_call(q, check_inputs)
        if agreement is None:
            if check_inputs is not None:
                _checks.flag("check_inputs", check_inputs)
            return make()

        def local():
            if fields["check_inputs"] is not False:
                _checks.no_capture()
            for flag in ("all_heads", "check_inputs"):
                _checks.flag(flag, fields[flag])
            return make()

        fields = {"run": self.tokens.run, **numbers, "check_inputs": self._check_inputs if check_inputs is None else check_inputs}
        return agreement.after(local, _checks.fields_of(name, self._exchange, EXCHANGES, fields, q, options))

    def decode(self, q: Tensor, kv_cache: Tensor, block_table: Optional[Tensor] = None,
               cache_seqlens: Optional[Tensor] = None, *, softmax_scale: float, v_dim: int = 512,
               attn_sink: Optional[Tensor] = None, all_heads: bool = False, overlap: bool = False, **options):
        """One layer; returns (out, lse) of the rank's heads, or with overlap a Pending of them.

        q              the rank's heads, (batch, s_q, h, d) or with cu_seqlens_q (total, h, d); rank r has heads r * h
                       to (r + 1) * h of all
        kv_cache, block_table  the rank's tokens (Interleaving)
        cache_seqlens  of whole contexts, the same on all ranks
        indices        sparse: the rank's own slots, as Interleaving.local_indices() makes them
        attn_sink      fp32 (h), of the rank's heads; the merge applies it
        all_heads      q has all heads on every rank, and so have out and lse: no gathering before, an all-gather after
        q_scale        of e4m3 queries: one, or one of each rank's heads
        check_inputs   True: ranks compare their calls and lengths first and tell each other what is refused, by some
                       small exchanges that the caller waits for; besides, as in flashlatent.decode(). None: what
                       ContextParallel was made with
        options        of flashlatent.decode(), but shard, out, lse and empty_lse
        """
        inputs = (kv_cache, block_table, cache_seqlens)
        call = functools.partial(self._step.decode, softmax_scale=softmax_scale, v_dim=v_dim)
        return self._decode("decode", call, q, inputs, v_dim, 1, attn_sink, all_heads, overlap, options)

    def decode_kv(self, q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, cache_seqlens: Tensor,
                  *, softmax_scale: float, attn_sink: Optional[Tensor] = None, all_heads: bool = False,
                  overlap: bool = False, **options):
        """As decode(), for keys and values, as flashlatent.decode_kv(). Each rank has all KV heads to which its query
        heads belong; with several KV heads, queries and partial results are copied into the order of KV heads."""
        kv_heads, v_dim = _checks.dims_of_key_values(key_cache, value_cache)
        inputs = (key_cache, value_cache, block_table, cache_seqlens)
        call = functools.partial(self._step.decode_kv, softmax_scale=softmax_scale)
        return self._decode("decode_kv", call, q, inputs, v_dim, kv_heads, attn_sink, all_heads, overlap, options)

    def _decode(self, name, call, q, inputs, v_dim, kv_heads, attn_sink, all_heads, overlap, options):
        agreement = self._agreement_of_call(q, options.get("check_inputs"))
        flags = {"all_heads": all_heads, "overlap": overlap,
                 "check_inputs": self._check_inputs if options.get("check_inputs") is None else options["check_inputs"]}
        options = {**options, "check_inputs": flags["check_inputs"]}

        def prepare():
            if flags["check_inputs"] is not False and self.world > 1:
                _checks.no_capture()
            if name == "decode_kv":
                _checks.cache_of_key_values(*inputs[:2])
            _checks.call(q, v_dim, kv_heads, flags, options)
            if agreement is not None:
                _checks.integers_and_sink(q, inputs[-1], attn_sink, options)
            return None if all_heads else self._gathering(q)

        def attend():
            gathered = q if all_heads else gather()
            message, sent = self._attend(call, gathered, inputs, v_dim, kv_heads, all_heads, options)
            return self._exchanging(message, sent, q, attn_sink, all_heads, overlap, options.get("cu_seqlens_q"))

        if self.world == 1:
            prepare()
            result = call(q, *inputs, attn_sink=attn_sink, **options)
            return Pending(lambda: result) if overlap else result
        if agreement is None:
            gather = prepare()
            return attend()()
        numbers = {"run": self.tokens.run, "v_dim": v_dim, "KV heads": kv_heads, **flags,
                   "softmax_scale": call.keywords["softmax_scale"]}
        gather = agreement.after(prepare, _checks.fields_of(name, self._exchange, EXCHANGES, numbers, q, options))
        agreement.compare_integers(q, inputs[-1], options)
        return agreement.after(attend)()

    def _agreement_of_call(self, q, check_inputs):
        """The Agreement of a call that checks; None for other calls, and with one rank."""
        check_inputs = self._check_inputs if check_inputs is None else check_inputs
        if self.world == 1 or (check_inputs is False and not _checks.environment_checks()):
            return None
        return self._agreement(q)

    def _agreement(self, q):
        """An Agreement of this group's ranks, on a device that the group exchanges for."""
        if self._small_on_cpu:
            device = torch.device("cpu")
        elif isinstance(q, Tensor) and q.is_cuda:
            device = q.device
        else:
            device = torch.device("cuda", torch.cuda.current_device())
        if device.type == "cuda":
            _checks.no_capture()  # of the CPU it is told to the other ranks
        return _checks.Agreement(self._group, device)

    def _attend(self, call, q, inputs, v_dim, kv_heads, all_heads, options):
        """Attends to this rank's tokens with all heads; returns a message."""
        cu_seqlens_q = options.get("cu_seqlens_q")
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype  # of outputs
        if cu_seqlens_q is None:
            message = Message(q.shape[0], q.shape[1], v_dim, dtype)
        else:
            s_q = options.get("tokens") or max(q.shape[0], 1)
            message = Message(cu_seqlens_q.shape[0] - 1, s_q, v_dim, dtype, total=q.shape[0])
        sent = message.empty(q, q.shape[-2])
        out, lse = message.out(sent), message.lse(sent)
        options = self._with_shard(options)
        if kv_heads == 1 or all_heads:
            call(q, *inputs, out=out, lse=lse, **options)
        else:  # a KV head's query heads are spread over the ranks
            own_out, own_lse = call(self._by_kv_head(q, -2, kv_heads), *inputs, **options)
            out.copy_(self._by_rank(own_out, -2, kv_heads))
            lse.copy_(self._by_rank(own_lse, 1, kv_heads))
        return message, sent

    def _exchanging(self, message, sent, q, attn_sink, all_heads, overlap, cu_seqlens_q):
        """Returns the exchange whose result is the call's, after everything that can fail on one rank."""
        heads = q.shape[-2]
        if self._peers is not None and not all_heads:
            return self._one_sided(message, sent, attn_sink, heads, overlap)
        if all_heads or _exchange.chosen(self._exchange, sent.numel()) == "all_gather":
            own = slice(None) if all_heads else slice(self.rank * heads, (self.rank + 1) * heads)
            exchange = _exchange.by_all_gather(sent, self._group, overlap, own)
        else:
            exchange = _exchange.by_all_to_all(sent, self._group, overlap)

        def finish():
            arrived = exchange()
            pending = Pending(lambda: _exchange.merge(message, arrived.wait(), q, attn_sink, cu_seqlens_q))
            return pending if overlap else pending.wait()

        return finish

    def _one_sided(self, message, sent, attn_sink, heads, overlap):
        if not overlap:
            merge = self._peers.merging(message, sent, attn_sink, heads)

            def at_once():
                self._follow_overlapped(sent.device)
                return merge()

            return at_once
        stream, here = self._side_stream(sent.device), torch.cuda.current_stream(sent.device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            merge = self._peers.merging(message, sent, attn_sink, heads)

        def beside():
            with torch.cuda.stream(stream):
                result = merge()
            self._overlapped = True

            def finish(kept=sent):
                torch.cuda.current_stream(kept.device).wait_stream(stream)
                self._overlapped = False
                for tensor in result:
                    tensor.record_stream(torch.cuda.current_stream(kept.device))
                return result

            return Pending(finish)

        return beside

    def _follow_overlapped(self, device):
        """Work enqueued next runs after the other stream's exchanges: calls that use peers' memory run one after
        another."""
        if self._overlapped:
            torch.cuda.current_stream(device).wait_stream(self._side_stream(device))
            self._overlapped = False

    def _side_stream(self, device):
        if not hasattr(self, "_stream"):
            self._stream = torch.cuda.Stream(device)
        return self._stream

    def _with_shard(self, options):
        sparse = options.get("indices") is not None
        return options if sparse else {**options, "shard": list(self.tokens)}

    def _of_all_heads(self, q, all_heads):
        """Something of the gathered queries' shape."""
        if all_heads or self.world == 1:
            return q
        shape = list(q.shape)
        shape[-2] *= self.world
        return q.narrow(-2, 0, 1).expand(shape)

    def _by_kv_head(self, tensor, dim, kv_heads):
        """From heads (rank, KV head, group) to (KV head, rank, group)."""
        return self._turned(tensor, dim, (self.world, kv_heads))

    def _by_rank(self, tensor, dim, kv_heads):
        return self._turned(tensor, dim, (kv_heads, self.world))

    @staticmethod
    def _turned(tensor, dim, extents):
        dim %= tensor.dim()
        return tensor.unflatten(dim, (*extents, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def _bytes(tensor):
    """Its memory, of any dtype: gloo does not know them all."""
    return tensor.view(-1).view(torch.uint8)
