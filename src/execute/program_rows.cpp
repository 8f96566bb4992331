#include "execute/program_rows.h"

#include <algorithm>
#include <iterator>

#include "comm/communicator.h"
#include "core/check.h"

namespace longnet {
namespace {

std::span<const float> floats(const BoundProgram& bound, int slot) {
  const std::span<const std::byte> bytes = bound.memory(slot);
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
const float* output(const BoundProgram& bound) { return floats(bound, kOutputSlot).data(); }

int64_t output_rows(const BoundProgram& bound) {
  const AttentionProblem& p = bound.sharded().problem;
  return p.batch * bound.shard().tokens() * p.num_heads;
}

int64_t row_index(const BoundProgram& bound, int64_t heads, int64_t batch, int64_t head,
                  int64_t token) {
  const TokenRanges mine = bound.shard();
  const int64_t at = mine.index_of(token);
  check(at >= 0, "token ", token, " is not on this rank");
  return (batch * mine.tokens() + at) * heads + head;
}
int64_t output_index(const BoundProgram& bound, int64_t batch, int64_t head, int64_t token) {
  return row_index(bound, bound.sharded().problem.num_heads, batch, head, token);
}

}  // namespace

RowFormat row_format(const AttentionProblem& p) {
  return {.seed = p.seed, .head_dim = p.head_dim, .dtype = p.dtype};
}

bool has_row(const BoundProgram& bound, int64_t batch, int64_t token) {
  const int64_t at = batch - bound.first_batch();
  return at >= 0 && at < bound.sharded().problem.batch && bound.shard().index_of(token) >= 0;
}

std::vector<TensorKind> made_inputs(const BoundProgram& bound) {
  std::vector<TensorKind> kinds{TensorKind::kQuery, TensorKind::kKeyValue};
  if (has_backward(bound.program().pass)) kinds.push_back(TensorKind::kGradOut);
  return kinds;
}

std::vector<FillRows> view_rows(const BoundProgram& bound, const SlotView& view) {
  const TensorKind kind = bound.program().slots[size_t(view.slot)].kind;
  check(!holds_o(kind) && kind != TensorKind::kStatistics, "rows of Q, K, V or gradients");
  const AttentionProblem& p = bound.sharded().problem;
  const RowMap map(bound.sharded(), kind, view.rows);
  const int64_t row_size = row_bytes(p, kind) / (holds_keys(kind) ? 2 : 1);
  std::vector<FillRows> tasks;
  for (int i = 0; i < view.num_pieces(); ++i) {
    const RowMap::Piece& piece = map.pieces()[size_t(view.first_piece() + i)];
    const auto heads = map.heads_with_rows(piece.heads);
    std::byte* const base = bound.begin_of(view, piece);
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
          if (holds_keys(kind)) {
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

std::vector<FillRows> shard_rows(const BoundProgram& bound, TensorKind kind) {
  const ShardedProblem& s = bound.sharded();
  const Slice own{kEveryRow, {.first = bound.rank()}, s.all_tokens(), s.all_heads()};
  int slot = kQuerySlot;
  if (kind == TensorKind::kKeyValue) slot = kKvSlot;
  if (kind == TensorKind::kGradOut) slot = kGradOutSlot;
  if (kind == TensorKind::kGradQuery) slot = kGradQuerySlot;
  if (kind == TensorKind::kGradKeyValue) slot = kGradKvSlot;
  return view_rows(bound, {slot, own});
}

uint64_t fill_inputs(const BoundProgram& bound, const RowWorker& worker,
                     std::span<const std::span<std::byte>> poisoned) {
  std::vector<FillRows> rows;
  for (const TensorKind kind : made_inputs(bound))
    std::ranges::copy(shard_rows(bound, kind), std::back_inserter(rows));
  uint64_t digest = 0;
  worker.fill(rows, row_format(bound.sharded().problem), bound.threads(), &digest, poisoned);
  return digest;
}

std::vector<std::span<std::byte>> written_memory(const BoundProgram& bound) {
  std::vector<std::span<std::byte>> memory;
  for (int slot = 0; slot < int(bound.program().slots.size()); ++slot)
    if (!bound.program().is_input(slot)) memory.push_back(bound.memory(slot));
  return memory;
}

void poison(const BoundProgram& bound, const RowWorker& worker) {
  for (const std::span<std::byte> bytes : written_memory(bound))
    worker.poison(bytes, bound.threads());
}

uint64_t digest_inputs(const BoundProgram& bound, const RowWorker& worker) {
  uint64_t digest = 0;
  for (const TensorKind kind : made_inputs(bound))
    digest += worker.digest(shard_rows(bound, kind), row_format(bound.sharded().problem),
                            bound.threads());
  return digest;
}

ReceivedRows received_rows(const BoundProgram& bound, size_t op) {
  ReceivedRows out;
  const AttentionProblem& p = bound.sharded().problem;
  const BoundOp& b = bound.op(op);
  const auto make = [&](const SlotView& view) {
    check(!holds_sum(bound.program().slots[size_t(view.slot)].kind),
          "the generator makes Q, K, V and dO, no results");
    const auto rows = view_rows(bound, view);
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
                         .o_stride = p.num_heads * p.output_row_floats(),
                         .lse_stride = p.num_heads,
                         .head = head,
                         .first_token = (bound.first_batch() + batch) * p.seq_len + run.first,
                         .token_step = run.stride,
                         .rows = run.count,
                         .dtype = p.output_dtype});
  std::vector<OutputSummary> parts(tasks.size()), heads(size_t(p.num_heads));
  worker.summarize(tasks, p.head_dim, bound.threads(), parts);
  for (size_t i = 0; i < tasks.size(); ++i) heads[size_t(tasks[i].head)].add(parts[i]);
  return heads;
}

std::vector<float> copy_host_rows(const MemoryRows& rows) {
  std::vector<float> copies;
  for (const std::span<const float> row : rows) copies.insert(copies.end(), row.begin(), row.end());
  return copies;
}

std::span<const float> output_row(const BoundProgram& bound, int64_t batch, int64_t head,
                                  int64_t token) {
  const int64_t row = bound.sharded().problem.output_row_floats();
  return {output(bound) + output_index(bound, batch, head, token) * row, size_t(row)};
}

const float* output_lse(const BoundProgram& bound, int64_t batch, int64_t head, int64_t token) {
  return output(bound) + output_rows(bound) * bound.sharded().problem.output_row_floats() +
         output_index(bound, batch, head, token);
}

std::vector<std::span<const float>> made_values(const BoundProgram& bound) {
  const size_t rows = size_t(output_rows(bound)),
               in_o = rows * size_t(bound.sharded().problem.output_row_floats());
  std::vector<std::span<const float>> made{{output(bound), in_o}};
  if (bound.program().output_is_partial()) made.push_back({output(bound) + in_o, rows});
  if (has_backward(bound.program().pass))
    for (const int slot : {kGradQuerySlot, kGradKvSlot}) made.push_back(floats(bound, slot));
  return made;
}

std::span<const float> gradient_row(const BoundProgram& bound, Tensor tensor, int64_t batch,
                                    int64_t head, int64_t token) {
  const AttentionProblem& p = bound.sharded().problem;
  const bool of_query = tensor == Tensor::kQuery;
  const auto values = floats(bound, of_query ? kGradQuerySlot : kGradKvSlot);
  const int64_t heads = of_query ? p.num_heads : p.num_kv_heads;
  int64_t row = row_index(bound, heads, batch, head, token);
  if (tensor == Tensor::kValue) row += p.batch * bound.shard().tokens() * heads;  // behind all dK
  return values.subspan(size_t(row * p.head_dim), size_t(p.head_dim));
}

std::array<uint64_t, 3> digest_gradients(const BoundProgram& bound, const RowWorker& worker) {
  const AttentionProblem& p = bound.sharded().problem;
  std::array<std::vector<FillRows>, 3> rows;  // by Tensor: kQuery, kKey, kValue
  for (const TensorKind kind : {TensorKind::kGradQuery, TensorKind::kGradKeyValue})
    for (const FillRows& run : shard_rows(bound, kind)) rows[size_t(run.tensor)].push_back(run);
  std::array<uint64_t, 3> digests{};
  for (size_t i = 0; i < rows.size(); ++i)
    digests[i] = worker.digest(rows[i], {.head_dim = p.head_dim}, bound.threads());
  return digests;
}

}  // namespace longnet
