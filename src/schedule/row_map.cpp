#include "schedule/row_map.h"

#include "core/check.h"

namespace longnet {

int64_t row_bytes(const AttentionProblem& problem, TensorKind kind) {
  switch (kind) {
    case TensorKind::kQuery:
      return problem.head_dim * dtype_bytes(problem.dtype);
    case TensorKind::kKeyValue:
      return 2 * problem.head_dim * dtype_bytes(problem.dtype);
    default:
      return (problem.head_dim + 1) * int64_t{sizeof(float)};
  }
}

int64_t slice_bytes(const ShardedProblem& sharded, TensorKind kind, const Slice& slice) {
  return RowMap(sharded, kind, slice).bytes();
}

namespace {
int64_t kv_heads_of(const AttentionProblem& p, const HeadRange& heads) {
  return heads.count == 0
             ? 0
             : p.kv_head_of(heads.first + heads.count - 1) - p.kv_head_of(heads.first) + 1;
}
}  // namespace

RowMap::RowMap(const ShardedProblem& sharded, TensorKind kind, const Slice& slice)
    : sharded_(sharded), kind_(kind), slice_(slice) {
  const AttentionProblem& p = sharded.problem;
  bytes_per_row_ = row_bytes(p, kind);
  if (slice.branch != kEveryRow) {
    rows_.emplace(sharded.pattern, slice.branch, p.seq_len);
    if (kind == TensorKind::kKeyValue) {
      KvStreams streams =
          kv_streams(p, sharded.pattern, slice.branch, slice.heads.first, slice.heads.count);
      for (const KvStream& s : streams.streams) stream_offsets_.push_back(s.offset);
      stream_of_head_ = std::move(streams.of_head);
    } else {
      for (int64_t h = 0; h < slice.heads.count; ++h) {
        stream_offsets_.push_back(offset(slice.branch, slice.heads.first + h));
        stream_of_head_.push_back(int(h));
      }
    }
  }
  for (int i = 0; i < slice.owners.count; ++i) {
    Piece piece{.owner = slice.owners[i],
                .tokens = intersect(sharded.layout.shard(slice.owners[i]), slice.within),
                .byte_offset = bytes_};
    if (rows_) {
      for (int64_t stream_offset : stream_offsets_) {
        piece.stream_begin.push_back(piece.rows_per_item);
        piece.rows_per_item += rows_->count(stream_offset, piece.tokens);
      }
    } else {
      piece.rows_per_item =
          piece.tokens.length() *
          (kind == TensorKind::kKeyValue ? kv_heads_of(p, slice.heads) : slice.heads.count);
    }
    piece.rows = piece.rows_per_item * p.batch;
    bytes_ += piece_bytes(piece);
    pieces_.push_back(std::move(piece));
  }
}

int64_t RowMap::offset(int branch, int64_t head) const {
  return head_offset(sharded_.pattern.offset, head, sharded_.problem.num_heads,
                     sharded_.pattern.branches.at(size_t(branch)).dilation_rate);
}

int RowMap::stream_of(int64_t head) const {
  check(head >= slice_.heads.first && head < slice_.heads.first + slice_.heads.count, "head ", head,
        " is not in this slice");
  return stream_of_head_[size_t(head - slice_.heads.first)];
}

RowMap::Place RowMap::locate(const Piece& piece, int64_t batch, int64_t head,
                             const TokenRange& run) const {
  check(piece.tokens.contains(run.first) && piece.tokens.contains(run.last()), "tokens ", run.first,
        " to ", run.last(), " are not in this piece");
  const int64_t item = batch * piece.rows_per_item;
  if (!rows_) {
    const AttentionProblem& p = sharded_.problem;
    const bool kv = kind_ == TensorKind::kKeyValue;
    const int64_t width = kv ? kv_heads_of(p, slice_.heads) : slice_.heads.count;
    const int64_t column =
        kv ? p.kv_head_of(head) - p.kv_head_of(slice_.heads.first) : head - slice_.heads.first;
    return {item + (run.first - piece.tokens.begin) * width + column, run.stride * width};
  }
  const int stream = stream_of(head);
  const int64_t before =
      rows_->count(stream_offsets_[size_t(stream)], {piece.tokens.begin, run.first});
  return {item + piece.stream_begin[size_t(stream)] + before, 1};
}

}  // namespace longnet
