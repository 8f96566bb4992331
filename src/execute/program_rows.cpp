#include "execute/program_rows.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {
namespace {

std::vector<TensorKind> made_inputs(const BoundProgram& bound) {
  std::vector<TensorKind> kinds{TensorKind::kQuery, TensorKind::kKeyValue};
  if (bound.program().pass == Pass::kBackward) kinds.push_back(TensorKind::kGradOut);
  return kinds;
}

// The rows of the pieces of `view`, of Q or of K and V. A K/V row that several query heads share
// comes once.
//   P = 2, N = 8, one head, rank 1's gathered slot of branch {8, 2}: its first piece (of rank 0)
//   holds the keys 0 and 2, which gives {key, head 0, tokens 0 2} and the same of V behind them.
std::vector<FillRows> fill_tasks(const BoundProgram& bound, const SlotView& view) {
  const TensorKind kind = bound.program().slots[size_t(view.slot)].kind;
  check(kind == TensorKind::kQuery || kind == TensorKind::kKeyValue || kind == TensorKind::kGradOut,
        "the generator makes Q, K, V and dO, no results");
  const AttentionProblem& p = bound.sharded().problem;
  const RowMap map(bound.sharded(), kind, view.rows);
  const int64_t row_size = p.head_dim * dtype_bytes(p.dtype);
  std::vector<FillRows> tasks;
  for (int i = 0; i < view.num_pieces(); ++i) {
    const RowMap::Piece& piece = map.pieces()[size_t(view.first_piece() + i)];
    const auto heads = map.heads_with_rows(piece.heads);
    std::byte* const base = bound.memory(view.slot).data() + piece.byte_offset;
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t head : heads)
        map.for_each_run(piece, head, [&](const TokenRange& run) {
          const auto place = map.locate(piece, batch, head, run);
          FillRows rows{.tensor = kind == TensorKind::kGradOut ? Tensor::kGradOut : Tensor::kQuery,
                        .head = head,
                        .first_token = (bound.first_batch() + batch) * p.seq_len + run.first,
                        .token_step = run.stride,
                        .rows = run.count,
                        .out = base + place.row * row_size,
                        .row_stride = place.step * p.head_dim};
          if (kind == TensorKind::kKeyValue) {
            rows.tensor = Tensor::kKey;
            rows.head = p.kv_head_of(head);
            tasks.push_back(rows);
            rows.tensor = Tensor::kValue;  // behind all K
            rows.out = base + (piece.rows + place.row) * row_size;
          }
          tasks.push_back(rows);
        });
  }
  return tasks;
}

const float* output(const BoundProgram& bound) {
  return reinterpret_cast<const float*>(bound.memory(kOutputSlot).data());
}

int64_t output_rows(const BoundProgram& bound) {
  const AttentionProblem& p = bound.sharded().problem;
  return p.batch * bound.shard().tokens() * p.num_heads;
}

int64_t output_index(const BoundProgram& bound, int64_t batch, int64_t head, int64_t token) {
  const TokenRanges mine = bound.shard();
  const int64_t at = mine.index_of(token);
  check(at >= 0, "token ", token, " is not on this rank");
  return (batch * mine.tokens() + at) * bound.sharded().problem.num_heads + head;
}

}  // namespace

RowFormat row_format(const AttentionProblem& p) {
  return {.seed = p.seed, .head_dim = p.head_dim, .dtype = p.dtype};
}

std::vector<FillRows> input_rows(const BoundProgram& bound, TensorKind kind) {
  const ShardedProblem& s = bound.sharded();
  const Slice own{kEveryRow, {.first = bound.rank()}, s.all_tokens(), s.all_heads()};
  const int slot = kind == TensorKind::kQuery     ? kQuerySlot
                   : kind == TensorKind::kGradOut ? kGradOutSlot
                                                  : kKvSlot;
  return fill_tasks(bound, {slot, own});
}

uint64_t fill_inputs(const BoundProgram& bound, const RowWorker& worker) {
  uint64_t digest = 0;
  for (const TensorKind kind : made_inputs(bound))
    worker.fill(input_rows(bound, kind), row_format(bound.sharded().problem), bound.threads(),
                &digest);
  return digest;
}

void poison(const BoundProgram& bound, const RowWorker& worker) {
  for (int slot = 0; slot < int(bound.program().slots.size()); ++slot)
    if (!bound.program().is_input(slot)) worker.poison(bound.memory(slot), bound.threads());
}

void hand_over(const BoundProgram& forward, const BoundProgram& backward) {
  std::ranges::copy(forward.memory(kOutputSlot), backward.memory(kOutputSlot).begin());
  for (const auto& [from, view] : backward.program().kept)
    std::ranges::copy(forward.memory(from), backward.memory(view.slot).begin());
}

uint64_t digest_inputs(const BoundProgram& bound, const RowWorker& worker) {
  uint64_t digest = 0;
  for (const TensorKind kind : made_inputs(bound))
    digest += worker.digest(input_rows(bound, kind), row_format(bound.sharded().problem),
                            bound.threads());
  return digest;
}

ReceivedRows received_rows(const BoundProgram& bound, size_t op) {
  ReceivedRows out;
  const AttentionProblem& p = bound.sharded().problem;
  const BoundOp& b = bound.op(op);
  const auto make = [&](const SlotView& view) {
    const auto rows = fill_tasks(bound, view);
    for (const FillRows& r : rows) out.bytes += r.rows * p.head_dim * dtype_bytes(p.dtype);
    out.rows.insert(out.rows.end(), rows.begin(), rows.end());
  };
  const auto make_all_but = [&](const SlotView& view, int own) {
    make(view.range(0, own));
    make(view.range(own + 1, view.rows.num_pieces() - own - 1));
  };
  visit_op(
      bound.program().ops[op].what, [&](const Recv& o) { make(o.what); },
      [&](const AllGather& o) { make_all_but(o.into, o.group.index_of(bound.rank())); },
      [&](const AllToAll& o) {
        const int own = o.group.index_of(bound.rank());
        make_all_but(o.into, own);
        out.own_from = part_of(std::span<const std::byte>(b.from), b.from_counts, own);
        out.own_into = part_of(b.into, b.into_counts, own);
      },
      [](const auto&) {});
  return out;
}

std::vector<OutputSummary> summarize_output(const BoundProgram& bound, const RowWorker& worker) {
  const AttentionProblem& p = bound.sharded().problem;
  std::vector<OutputRows> tasks;  // one per sequence, head and range of the shard
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t head = 0; head < p.num_heads; ++head)
      for (const TokenRange& run : bound.shard())
        tasks.push_back({.o = output_row(bound, batch, head, run.first).data(),
                         .lse = bound.program().output_is_partial()
                                    ? output_lse(bound, batch, head, run.first)
                                    : nullptr,
                         .o_stride = p.num_heads * p.head_dim,
                         .lse_stride = p.num_heads,
                         .head = head,
                         .first_token = (bound.first_batch() + batch) * p.seq_len + run.first,
                         .token_step = run.stride,
                         .rows = run.count});
  std::vector<OutputSummary> parts(tasks.size()), heads(size_t(p.num_heads));
  worker.summarize(tasks, p.head_dim, bound.threads(), parts);
  for (size_t i = 0; i < tasks.size(); ++i) heads[size_t(tasks[i].head)].add(parts[i]);
  return heads;
}

std::span<const float> output_row(const BoundProgram& bound, int64_t batch, int64_t head,
                                  int64_t token) {
  const int64_t d = bound.sharded().problem.head_dim;
  return {output(bound) + output_index(bound, batch, head, token) * d, size_t(d)};
}

const float* output_lse(const BoundProgram& bound, int64_t batch, int64_t head, int64_t token) {
  return output(bound) + output_rows(bound) * bound.sharded().problem.head_dim +
         output_index(bound, batch, head, token);
}

std::span<const float> output_values(const BoundProgram& bound) {
  const int64_t values = bound.sharded().problem.head_dim + bound.program().output_is_partial();
  return {output(bound), size_t(output_rows(bound) * values)};
}

}  // namespace longnet
