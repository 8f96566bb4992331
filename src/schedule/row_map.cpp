#include "schedule/row_map.h"

#include "core/check.h"

namespace longnet {

int64_t row_bytes(const AttentionProblem& problem, TensorKind kind) {
  switch (kind) {
    case TensorKind::kQuery:
    case TensorKind::kResult:
      return problem.head_dim * dtype_bytes(problem.dtype);
    case TensorKind::kKeyValue:
      return 2 * problem.head_dim * dtype_bytes(problem.dtype);
    default:
      return (problem.head_dim + 1) * int64_t{sizeof(float)};
  }
}

int64_t slice_bytes(const ShardedProblem& sharded, TensorKind kind, const Slice& slice) {
  return view_bytes(sharded, kind, {.rows = slice});
}

namespace {

// Rows of one token that a kEveryRow slice holds: of query heads, or of the kv heads that they
// read.
int64_t rows_of_token(const AttentionProblem& p, TensorKind kind, const HeadRange& heads) {
  if (kind != TensorKind::kKeyValue || heads.count == 0) return heads.count;
  return p.kv_head_of(heads.first + heads.count - 1) - p.kv_head_of(heads.first) + 1;
}

// Rows of `tokens` that a branch selects for one stream.
int64_t selected_rows(const BranchRows& rows, TensorKind kind, int64_t offset,
                      const TokenRanges& tokens) {
  int64_t count = 0;
  for (const TokenRange& r : tokens) {
    if (r.stride != 1) {
      check(rows.num_offsets() == 1, "strided shards cannot be thinned further");
      count += r.count;
      continue;
    }
    const TokenInterval all{r.first, r.first + r.count};
    count +=
        kind == TensorKind::kKeyValue ? rows.count(offset, all) : rows.count_queries(offset, all);
  }
  return count;
}

// Dilation offset of each stream of rows that a branch's slice holds.
std::vector<int64_t> offsets_of_streams(const ShardedProblem& s, TensorKind kind,
                                        const Slice& slice) {
  std::vector<int64_t> offsets;
  if (kind == TensorKind::kKeyValue) {
    for (const KvStream& stream :
         kv_streams(s.problem, s.pattern, slice.branch, slice.heads.first, slice.heads.count)
             .streams)
      offsets.push_back(stream.offset);
    return offsets;
  }
  const int64_t all = num_offsets(s.pattern.branches.at(size_t(slice.branch)));
  for (int64_t h = 0; h < slice.heads.count; ++h)
    offsets.push_back(
        head_offset(s.pattern.offset, slice.heads.first + h, s.problem.num_heads, all));
  return offsets;
}

// True for owners whose shards follow each other: their tokens are one interval, or two when the
// order begins in the middle.
bool is_line_of_neighbours(const ShardedProblem& s, const RankGroup& owners) {
  return s.layout.kind() == LayoutKind::kContiguous && owners.inner_count == 0 &&
         (owners.stride == 1 || owners.count == 1);
}

std::vector<TokenInterval> intervals_of(const ShardedProblem& s, const SlotView& view) {
  const RankGroup& owners = view.rows.owners;
  const int first = (view.first_piece() + owners.rotation) % owners.count, n = view.num_pieces();
  const auto of = [&](int from, int to) {  // members [from, to)
    return TokenInterval{s.layout.interval(owners.first + from).begin,
                         s.layout.interval(owners.first + to - 1).end};
  };
  if (n == 0) return {};
  if (first + n <= owners.count) return {of(first, first + n)};
  return {of(first, owners.count), of(0, first + n - owners.count)};
}

}  // namespace

int64_t view_bytes(const ShardedProblem& sharded, TensorKind kind, const SlotView& view) {
  const Slice& slice = view.rows;
  const AttentionProblem& p = sharded.problem;
  std::optional<BranchRows> rows;
  std::vector<int64_t> offsets;
  if (slice.branch != kEveryRow) {
    check(slice.head_parts == 1, "a branch's rows are not split by heads");
    rows.emplace(sharded.pattern, slice.branch, p.seq_len);
    offsets = offsets_of_streams(sharded, kind, slice);
  }
  const auto rows_of = [&](const TokenRanges& tokens, const HeadRange& heads) {
    if (!rows) return tokens.tokens() * rows_of_token(p, kind, heads);
    int64_t sum = 0;
    for (const int64_t offset : offsets) sum += selected_rows(*rows, kind, offset, tokens);
    return sum;
  };
  int64_t count = 0;
  if (slice.head_parts == 1 && is_line_of_neighbours(sharded, slice.owners)) {
    for (const TokenInterval& part : intervals_of(sharded, view)) {
      const TokenInterval in = intersect(part, slice.within);
      TokenRanges tokens;
      tokens.add({in.begin, 1, in.length()});
      count += rows_of(tokens, slice.heads);
    }
    return count * p.batch * row_bytes(p, kind);
  }
  for (int i = 0; i < view.num_pieces(); ++i) {
    const int piece = view.first_piece() + i;
    count += rows_of(owned_tokens(sharded, slice.owners[piece / slice.head_parts], slice.within),
                     head_part(slice, piece % slice.head_parts));
  }
  return count * p.batch * row_bytes(p, kind);
}

TokenRanges owned_tokens(const ShardedProblem& sharded, Rank owner, TokenInterval within) {
  TokenRanges out;
  for (const TokenRange& r : sharded.layout.shard(owner)) out.add(clip(r, within));
  return out;
}

HeadRange head_part(const Slice& s, int part) {
  const int64_t begin = part_begin(s.heads.count, s.head_parts, part);
  return {s.heads.first + begin, part_begin(s.heads.count, s.head_parts, part + 1) - begin};
}

RowMap::RowMap(const ShardedProblem& sharded, TensorKind kind, const Slice& slice)
    : sharded_(sharded), kind_(kind), slice_(slice) {
  const AttentionProblem& p = sharded.problem;
  bytes_per_row_ = row_bytes(p, kind);
  if (slice.branch != kEveryRow) {
    check(slice.head_parts == 1, "a branch's rows are not split by heads");
    rows_.emplace(sharded.pattern, slice.branch, p.seq_len);
    if (kind == TensorKind::kKeyValue)
      stream_of_head_ =
          kv_streams(p, sharded.pattern, slice.branch, slice.heads.first, slice.heads.count)
              .of_head;
    stream_offsets_ = offsets_of_streams(sharded, kind, slice);
  }
  pieces_.reserve(size_t(slice.num_pieces()));
  for (int i = 0; i < slice.owners.count; ++i)
    for (int part = 0; part < slice.head_parts; ++part) {
      Piece piece{.owner = slice.owners[i],
                  .heads = head_part(slice, part),
                  .tokens = owned_tokens(sharded, slice.owners[i], slice.within),
                  .byte_offset = bytes_};
      if (rows_) {
        for (int64_t stream_offset : stream_offsets_) {
          piece.stream_begin.push_back(piece.rows_per_item);
          piece.rows_per_item += count_rows(stream_offset, piece.tokens);
        }
      } else {
        piece.rows_per_item = piece.tokens.tokens() * rows_of_token(p, kind, piece.heads);
      }
      piece.rows = piece.rows_per_item * p.batch;
      bytes_ += piece_bytes(piece);
      pieces_.push_back(std::move(piece));
    }
}

int64_t RowMap::begin_byte(const SlotView& view) const {
  const size_t first = size_t(view.first_piece());
  return first < pieces_.size() ? pieces_[first].byte_offset : bytes_;
}

int64_t RowMap::num_bytes(const SlotView& view) const {
  int64_t bytes = 0;
  for (int i = 0; i < view.num_pieces(); ++i)
    bytes += piece_bytes(pieces_.at(size_t(view.first_piece() + i)));
  return bytes;
}

int64_t RowMap::count_rows(int64_t offset, const TokenRanges& tokens) const {
  return selected_rows(*rows_, kind_, offset, tokens);
}

int64_t RowMap::offset(int branch, int64_t head) const {
  return head_offset(sharded_.pattern.offset, head, sharded_.problem.num_heads,
                     num_offsets(sharded_.pattern.branches.at(size_t(branch))));
}

int RowMap::stream_of(int64_t head) const {
  check(head >= slice_.heads.first && head < slice_.heads.first + slice_.heads.count, "head ", head,
        " is not in this slice");
  const int64_t index = head - slice_.heads.first;
  return kind_ == TensorKind::kKeyValue ? stream_of_head_[size_t(index)] : int(index);
}

RowMap::Place RowMap::locate(const Piece& piece, int64_t batch, int64_t head,
                             const TokenRange& run) const {
  const int64_t item = batch * piece.rows_per_item;
  const int64_t index = piece.tokens.index_of(run.first);
  check(index >= 0 && piece.tokens.index_of(run.last()) >= index, "tokens ", run.first, " to ",
        run.last(), " are not in this piece");
  if (!rows_) {
    const AttentionProblem& p = sharded_.problem;
    const int64_t width = rows_of_token(p, kind_, piece.heads);
    const int64_t column = kind_ == TensorKind::kKeyValue
                               ? p.kv_head_of(head) - p.kv_head_of(piece.heads.first)
                               : head - piece.heads.first;
    const int64_t stride = run.first >= piece.tokens.range[1].first && piece.tokens.count > 1
                               ? piece.tokens.range[1].stride
                               : piece.tokens.range[0].stride;
    return {item + index * width + column, run.stride / stride * width};
  }
  const int stream = stream_of(head);
  TokenRanges earlier;
  for (const TokenRange& r : piece.tokens) earlier.add(clip(r, {r.first, run.first}));
  return {item + piece.stream_begin[size_t(stream)] +
              count_rows(stream_offsets_[size_t(stream)], earlier),
          1};
}

}  // namespace longnet
