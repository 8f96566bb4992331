// Where the rows of a Slice lie in memory: the one place that knows buffer layouts.
//
// A slice is stored piece after piece, one per owner. Inside a piece everything is counted in rows:
//   kEveryRow:  [batch][token][head]            (Q and output: query heads; K/V: kv heads)
//   a branch:   [batch][stream][selected token] (partial: one stream per query head; K/V:
//   KvStreams)
// K/V pieces hold all K rows, then all V rows; partial pieces all O rows (fp32), then one LSE per
// row.
//
//   N = 8, P = 2, branch {8, 2}, H = Hkv = 2, rank 1's piece of K: tokens 4 6 (head 0), then 5 7
//   (head 1).
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
    TokenInterval tokens;
    int64_t byte_offset;        // in the slot
    int64_t rows = 0;           // of one tensor: all sequences of the batch, all heads or streams
    int64_t rows_per_item = 0;  // of one sequence
    std::vector<int64_t> stream_begin = {};  // first row of each stream; empty for kEveryRow
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }
  int64_t piece_bytes(const Piece& piece) const { return piece.rows * bytes_per_row_; }

  // Rows of `piece` that hold the tokens of `run` for one head: row, row + step, ...
  struct Place {
    int64_t row, step;
  };
  Place locate(const Piece& piece, int64_t batch, int64_t head, const TokenRange& run) const;

  // Calls fn(run, segment) for each run of rows, inside `within`, that `branch` selects for `head`
  // and that `piece` holds. The slice must hold every row or just this branch's.
  template <class Fn>
  void for_each_run(const Piece& piece, int branch, int64_t head, TokenInterval within,
                    Fn fn) const {
    const BranchRows rows(sharded_.pattern, branch, sharded_.problem.seq_len);
    rows.for_each_run(offset(branch, head), intersect(piece.tokens, within),
                      [&](int64_t segment, const TokenRange& run) { fn(run, segment); });
  }

  const Slice& slice() const { return slice_; }

 private:
  int64_t offset(int branch, int64_t head) const;
  int stream_of(int64_t head) const;

  ShardedProblem sharded_;
  TensorKind kind_;
  Slice slice_;
  std::vector<int64_t> stream_offsets_;  // dilation offset of each stream; empty for kEveryRow
  std::vector<int> stream_of_head_;
  std::optional<BranchRows> rows_;
  int64_t bytes_per_row_ = 0, bytes_ = 0;
  std::vector<Piece> pieces_;
};

// Bytes of a row: K and V together, or O and LSE together.
int64_t row_bytes(const AttentionProblem& problem, TensorKind kind);
int64_t slice_bytes(const ShardedProblem& sharded, TensorKind kind, const Slice& slice);

}  // namespace longnet
