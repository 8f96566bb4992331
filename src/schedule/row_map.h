// Memory layout of the rows of a Slice, defined here alone.
//
// A slice is stored piece after piece, one per owner (and head part). Inside a piece everything is
// counted in rows:
//   kEveryRow   [batch][token][head]              Q, output: query heads;           K/V: kv heads
//   a branch    [batch][stream][selected token]   Q, partial: a stream a query head; K/V: KvStreams
// A stream is the rows that one head reads in the branch. Query heads of one K/V head that select
// the same rows share a stream of K/V; those that select others have one each.
// K/V pieces hold all K rows, then all V rows, and so do their gradients; partial pieces all O
// rows, then one LSE (fp32) a row; statistics L and delta side by side.
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

// Counts rows of a slice: of the streams that a branch's slice holds, else of whole tokens.
class RowCount {
 public:
  RowCount(const ShardedProblem& sharded, TensorKind kind, const Slice& slice);
  // Rows of `tokens`, in one sequence of the batch.
  int64_t of(const TokenRanges& tokens, const HeadRange& heads) const;
  // Rows of a stream: only its offset decides.
  int64_t at_offset(int64_t offset, const TokenRanges& tokens) const;
  // Rows of one token: of query heads, or of the kv heads that they read.
  int64_t of_token(const HeadRange& heads) const;
  // One stream per query head; of K/V two heads may share one. Empty for kEveryRow.
  const KvStreams& streams() const { return streams_; }

 private:
  AttentionProblem problem_;
  TensorKind kind_;
  std::optional<BranchRows> rows_;
  KvStreams streams_;
  std::vector<int64_t> offsets_;  // one per stream, sorted
};

class RowMap {
 public:
  RowMap(const ShardedProblem& sharded, TensorKind kind, const Slice& slice);

  struct Piece {
    Rank owner;
    HeadRange heads;
    TokenRanges tokens = {};
    int64_t byte_offset = 0;    // offset in the slot
    int64_t rows = 0;           // rows of one tensor: the whole batch, all heads or streams
    int64_t rows_per_item = 0;  // rows of one sequence
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
                    Fn fn) const;
  // Calls fn(run) for all rows of `piece` for one head: its branch's runs, or its tokens.
  template <class Fn>
  void for_each_run(const Piece& piece, int64_t head, Fn fn) const {
    if (slice_.branch != kEveryRow)
      return for_each_run(piece, slice_.branch, head, slice_.within,
                          [&](const TokenRange& run, int64_t) { fn(run); });
    for (const TokenRange& r : piece.tokens) fn(r);
  }
  // The heads of `range` that hold rows of their own: of K/V one per K/V head or stream.
  std::vector<int64_t> heads_with_rows(const HeadRange& range) const;

 private:
  ShardedProblem sharded_;
  TensorKind kind_;
  Slice slice_;
  RowCount count_;
  int64_t bytes_per_row_ = 0, bytes_ = 0;
  std::vector<Piece> pieces_;
};

// The rows of a branch that a slice of this kind holds: keys, or queries.
inline BranchRows branch_rows(const ShardedProblem& sharded, TensorKind kind, int branch) {
  const BranchRows keys(sharded.pattern, branch, sharded.problem);
  return holds_keys(kind) ? keys : keys.queries();
}

template <class Fn>
void RowMap::for_each_run(const Piece& piece, int branch, int64_t head, TokenInterval within,
                          Fn fn) const {
  const BranchRows rows = branch_rows(sharded_, kind_, branch);
  for (const TokenRange& range : piece.tokens) {
    if (range.stride == 1) {
      rows.for_each_run(rows.offset_of(head),
                        intersect({range.first, range.first + range.count}, within),
                        [&](int64_t segment, const TokenRange& run) { fn(run, segment); });
      continue;
    }
    // Strided shards hold whole segments' rows at equal distances: only for branches that take all.
    const TokenRange some = clip(range, within);
    for (int64_t at = 0; at < some.count;) {
      const int64_t segment = rows.segment_of(some[at]);
      const TokenRange run = clip(some, rows.segment(segment));
      fn(run, segment);
      at += run.count;
    }
  }
}

// Bytes of a row: K and V together, O and LSE together, L and delta together.
int64_t row_bytes(const AttentionProblem& problem, TensorKind kind);
// Bytes of the pieces that an op touches, without a map of all others.
int64_t view_bytes(const ShardedProblem& sharded, TensorKind kind, const SlotView& view);
// The values of the pieces of a slice of kAllValues.
TokenInterval values_of(const SlotView& view);
// The tokens of the pieces of `view`, whose heads are not split, as ranges: few where shards follow
// each other, however many they are.
std::vector<TokenRange> tokens_of(const ShardedProblem& sharded, const SlotView& view);
// The tokens of `owner` inside `within`.
TokenRanges owned_tokens(const ShardedProblem& sharded, Rank owner, TokenInterval within);
HeadRange head_part(const Slice& slice, int part);
// Owner and heads of the i-th piece that `view` touches.
inline Rank owner_of(const SlotView& view, int i) {
  return view.rows.owners[(view.first_piece() + i) / view.rows.head_parts];
}
inline HeadRange heads_of(const SlotView& view, int i) {
  return head_part(view.rows, (view.first_piece() + i) % view.rows.head_parts);
}
// True when the two views agree on owner, heads and rows of each piece.
bool same_rows(const SlotView& a, const SlotView& b);

}  // namespace longnet
