// Memory layout of the rows of a Slice: the one place that knows it.
//
// A slice is stored piece after piece, one per owner (and head part). Inside a piece everything is
// counted in rows:
//   kEveryRow   [batch][token][head]              Q, output: query heads;           K/V: kv heads
//   a branch    [batch][stream][selected token]   Q, partial: a stream a query head; K/V: KvStreams
// K/V pieces hold all K rows, then all V rows; partial pieces all O rows (fp32), then one LSE a
// row.
//
//   N = 8, P = 2, branch {8, 2}, H = Hkv = 2:   piece of      rank 0        rank 1
//                                               K, tokens     0 2   1 3     4 6   5 7
//                                               of head       0     1       0     1
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/program.h"

namespace longnet {

class RowMap {
 public:
  RowMap(const ShardedProblem& sharded, TensorKind kind, const Slice& slice);

  struct Piece {
    Rank owner;
    HeadRange heads;
    TokenRanges tokens;
    int64_t byte_offset = 0;    // in the slot
    int64_t rows = 0;           // of one tensor: all sequences of the batch, all heads or streams
    int64_t rows_per_item = 0;  // of one sequence
    std::vector<int64_t> stream_begin = {};  // first row of each stream; empty for kEveryRow
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }
  int64_t piece_bytes(const Piece& piece) const { return piece.rows * bytes_per_row_; }
  // Offset of the first piece of `view`, and the length of all its pieces together.
  int64_t begin_byte(const SlotView& view) const;
  int64_t num_bytes(const SlotView& view) const;

  // Rows of `piece` that hold the tokens of `run` for one head: row, row + step, ...
  struct Place {
    int64_t row, step;
  };
  Place locate(const Piece& piece, int64_t batch, int64_t head, const TokenRange& run) const;

  // Calls fn(run, segment) for each run of rows, inside `within`, that `branch` selects for `head`
  // (as keys in a K/V slice, as queries in others) and that `piece` holds. The slice must hold
  // every row or just this branch's.
  template <class Fn>
  void for_each_run(const Piece& piece, int branch, int64_t head, TokenInterval within,
                    Fn fn) const {
    const BranchRows rows(sharded_.pattern, branch, sharded_.problem.seq_len);
    for_each_selected(rows, offset(branch, head), piece.tokens, within,
                      [&](int64_t segment, const TokenRange& run) { fn(run, segment); });
  }

  const Slice& slice() const { return slice_; }

 private:
  int64_t offset(int branch, int64_t head) const;
  int stream_of(int64_t head) const;
  int64_t count_rows(int64_t offset, const TokenRanges& tokens) const;
  template <class Fn>
  void for_each_selected(const BranchRows& rows, int64_t offset, const TokenRanges& tokens,
                         TokenInterval within, Fn fn) const;

  ShardedProblem sharded_;
  TensorKind kind_;
  Slice slice_;
  std::vector<int64_t> stream_offsets_;  // dilation offset of each stream; empty for kEveryRow
  std::vector<int> stream_of_head_;      // of K/V: two heads may share a stream
  std::optional<BranchRows> rows_;
  int64_t bytes_per_row_ = 0, bytes_ = 0;
  std::vector<Piece> pieces_;
};

template <class Fn>
void RowMap::for_each_selected(const BranchRows& rows, int64_t offset, const TokenRanges& tokens,
                               TokenInterval within, Fn fn) const {
  for (const TokenRange& range : tokens) {
    if (range.stride == 1) {
      const TokenInterval part = intersect({range.first, range.first + range.count}, within);
      if (kind_ == TensorKind::kKeyValue)
        rows.for_each_run(offset, part, fn);
      else
        rows.for_each_query_run(offset, part, fn);
      continue;
    }
    // Strided shards hold whole segments' rows at equal distances: only for branches that take all.
    const TokenRange some = clip(range, within);
    for (int64_t at = 0; at < some.count;) {
      const int64_t segment = rows.segment_of(some[at]);
      const TokenRange run = clip(some, rows.segment(segment));
      fn(segment, run);
      at += run.count;
    }
  }
}

// Bytes of a row: K and V together, or O and LSE together.
int64_t row_bytes(const AttentionProblem& problem, TensorKind kind);
int64_t slice_bytes(const ShardedProblem& sharded, TensorKind kind, const Slice& slice);
// Bytes of the pieces that an op touches, without a map of all others.
int64_t view_bytes(const ShardedProblem& sharded, TensorKind kind, const SlotView& view);
// The tokens of `owner` inside `within`.
TokenRanges owned_tokens(const ShardedProblem& sharded, Rank owner, TokenInterval within);
HeadRange head_part(const Slice& slice, int part);

}  // namespace longnet
