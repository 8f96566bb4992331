#include "execute/row_tasks.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {
namespace {

// The heads of `piece` that hold rows of their own: all of Q, one per K/V head or stream of K/V.
std::vector<int64_t> heads_with_rows(const ShardedProblem& s, TensorKind kind,
                                     const RowMap::Piece& piece, int branch) {
  std::vector<int64_t> heads;
  std::vector<KvStream> seen;
  for (int64_t head = piece.heads.first; head < piece.heads.first + piece.heads.count; ++head) {
    if (kind == TensorKind::kKeyValue) {
      const KvStream stream =
          branch == kEveryRow ? KvStream{s.problem.kv_head_of(head), 0}
                              : kv_streams(s.problem, s.pattern, branch, head, 1).streams.front();
      if (std::find(seen.begin(), seen.end(), stream) != seen.end()) continue;
      seen.push_back(stream);
    }
    heads.push_back(head);
  }
  return heads;
}

}  // namespace

RowFormat row_format(const AttentionProblem& p) {
  return {.seed = p.seed, .head_dim = p.head_dim, .dtype = p.dtype};
}

std::vector<FillRows> fill_tasks(const ShardedProblem& s, TensorKind kind, const SlotView& view,
                                 std::byte* slot, int64_t first_batch) {
  check(kind == TensorKind::kQuery || kind == TensorKind::kKeyValue,
        "the generator makes Q, K and V, no results");
  const AttentionProblem& p = s.problem;
  const RowMap map(s, kind, view.rows);
  const int64_t row_size = p.head_dim * dtype_bytes(p.dtype);
  std::vector<FillRows> tasks;
  for (int i = 0; i < view.num_pieces(); ++i) {
    const RowMap::Piece& piece = map.pieces()[size_t(view.first_piece() + i)];
    const auto heads = heads_with_rows(s, kind, piece, view.rows.branch);
    std::byte* const base = slot + piece.byte_offset;
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t head : heads)
        for_each_row_run(map, piece, head, [&](const TokenRange& run) {
          const auto place = map.locate(piece, batch, head, run);
          FillRows rows{.tensor = Tensor::kQuery,
                        .head = head,
                        .first_token = (first_batch + batch) * p.seq_len + run.first,
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

std::vector<OutputRows> output_tasks(const ShardedProblem& s, Rank rank, const std::byte* slot,
                                     bool has_lse, int64_t first_batch) {
  const AttentionProblem& p = s.problem;
  const RowMap map(s, TensorKind::kPartial,
                   {kEveryRow, {.first = rank}, s.all_tokens(), s.all_heads()});
  const RowMap::Piece& piece = map.pieces().front();
  const float* const o = reinterpret_cast<const float*>(slot + piece.byte_offset);
  std::vector<OutputRows> tasks;
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t head = 0; head < p.num_heads; ++head)
      for (const TokenRange& run : piece.tokens) {
        const auto place = map.locate(piece, batch, head, run);
        tasks.push_back({.o = o + place.row * p.head_dim,
                         .lse = has_lse ? o + piece.rows * p.head_dim + place.row : nullptr,
                         .o_stride = place.step * p.head_dim,
                         .lse_stride = place.step,
                         .head = head,
                         .first_token = (first_batch + batch) * p.seq_len + run.first,
                         .token_step = run.stride,
                         .rows = run.count});
      }
  return tasks;
}

}  // namespace longnet
