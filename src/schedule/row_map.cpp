#include "schedule/row_map.h"

#include <algorithm>
#include <set>

#include "core/check.h"

namespace longnet {

int64_t row_bytes(const AttentionProblem& problem, TensorKind kind) {
  switch (kind) {
    case TensorKind::kQuery:
    case TensorKind::kResult:
    case TensorKind::kGradOut:
      return problem.head_dim * dtype_bytes(problem.dtype);
    case TensorKind::kKeyValue:
      return 2 * problem.head_dim * dtype_bytes(problem.dtype);
    case TensorKind::kStatistics:
      return 2 * int64_t{sizeof(float)};
    case TensorKind::kGradQuery:
      return problem.head_dim * int64_t{sizeof(float)};
    case TensorKind::kGradKeyValue:
      return 2 * problem.head_dim * int64_t{sizeof(float)};
    case TensorKind::kValues:
      return sizeof(float);
    case TensorKind::kStored:
      return dtype_bytes(problem.dtype);
    default:
      return (problem.output_row_floats() + 1) * int64_t{sizeof(float)};
  }
}

std::vector<TokenRange> tokens_of(const ShardedProblem& s, const SlotView& view) {
  const RankGroup& owners = view.rows.owners;
  std::vector<TokenRange> out;
  const auto add = [&](const TokenRange& r) {
    if (r.empty()) return;
    if (!out.empty() && r.stride == 1 && out.back().stride == 1 && out.back().last() + 1 == r.first)
      out.back().count += r.count;
    else
      out.push_back(r);
  };
  if (owners.stride != 0 && owners.count == s.layout.grid().sequence &&
      view.num_pieces() == owners.count) {
    add(clip({0, 1, s.problem.seq_len}, view.rows.within));
  } else if (s.layout.kind() == LayoutKind::kContiguous && owners.inner_count == 0 &&
             owners.stride == s.layout.grid().head_groups) {
    // Shards of neighbours follow each other: one interval, or two when the order begins in the
    // middle.
    const int first = (view.first_piece() + owners.rotation) % owners.count;
    const int end = first + view.num_pieces(), turn = std::min(end, owners.count);
    for (const auto& [from, to] : {std::pair{first, turn}, std::pair{0, end - turn}})
      if (from < to) {
        const auto interval = [&](int i) {
          return s.layout.interval(owners.first + i * owners.stride);
        };
        const int64_t begin = interval(from).begin;
        add(clip({begin, 1, interval(to - 1).end - begin}, view.rows.within));
      }
  } else {
    for (int i = 0; i < view.num_pieces(); ++i)
      for (const TokenRange& r : owned_tokens(s, owners[view.first_piece() + i], view.rows.within))
        add(r);
  }
  return out;
}

TokenInterval values_of(const SlotView& view) {
  const TokenInterval all = view.rows.within;
  const auto begin_of = [&](int piece) {
    return all.begin + part_begin(all.length(), view.rows.owners.count, piece);
  };
  return {begin_of(view.first_piece()), begin_of(view.first_piece() + view.num_pieces())};
}

int64_t view_bytes(const ShardedProblem& sharded, TensorKind kind, const SlotView& view) {
  const Slice& slice = view.rows;
  if (slice.branch == kAllValues)
    return values_of(view).length() * row_bytes(sharded.problem, kind);
  if (const int same = view.pieces_of_a_row(); same > 1)
    return same * view_bytes(sharded, kind, view.piece(0));
  const RowCount rows(sharded, kind, slice);
  int64_t count = 0;
  if (slice.head_parts == 1)
    for (const TokenRange& tokens : tokens_of(sharded, view))
      count += rows.of({{tokens}, 1}, slice.heads);
  else
    for (int i = 0; i < view.num_pieces(); ++i)
      count += rows.of(owned_tokens(sharded, owner_of(view, i), slice.within), heads_of(view, i));
  return count * sharded.problem.batch * row_bytes(sharded.problem, kind);
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

bool same_rows(const SlotView& a, const SlotView& b) {
  if (a.num_pieces() != b.num_pieces() || a.rows.branch != b.rows.branch) return false;
  if (a.rows.branch == kAllValues) return values_of(a) == values_of(b);
  if (a.rows.within != b.rows.within) return false;
  for (int i = 0; i < a.num_pieces(); ++i)
    if (owner_of(a, i) != owner_of(b, i) || heads_of(a, i) != heads_of(b, i)) return false;
  return true;
}

RowCount::RowCount(const ShardedProblem& sharded, TensorKind kind, const Slice& slice)
    : problem_(sharded.problem), kind_(kind) {
  if (slice.branch < 0) return;
  check(slice.head_parts == 1, "a branch's rows are not split by heads");
  rows_ = branch_rows(sharded, kind, slice.branch);
  const HeadRange& heads = slice.heads;
  if (holds_keys(kind))
    streams_ = kv_streams(problem_, sharded.pattern, slice.branch, heads.first, heads.count);
  else
    for (int64_t head = heads.first; head < heads.end(); ++head) {
      streams_.of_head.push_back(int(streams_.streams.size()));
      streams_.streams.push_back({problem_.kv_head_of(head), rows_->offset_of(head)});
    }
  for (const KvStream& stream : streams_.streams) offsets_.push_back(stream.offset);
  std::ranges::sort(offsets_);
}

int64_t RowCount::of_token(const HeadRange& heads) const {
  if (!holds_keys(kind_) || heads.count == 0) return heads.count;
  return problem_.kv_head_of(heads.end() - 1) - problem_.kv_head_of(heads.first) + 1;
}

int64_t RowCount::at_offset(int64_t offset, const TokenRanges& tokens) const {
  int64_t count = 0;
  for (const TokenRange& r : tokens) {
    check(r.stride == 1 || rows_->num_offsets() == 1, "strided shards cannot be thinned further");
    count += r.stride == 1 ? rows_->count(offset, {r.first, r.first + r.count}) : r.count;
  }
  return count;
}

int64_t RowCount::of(const TokenRanges& tokens, const HeadRange& heads) const {
  if (!rows_) return tokens.tokens() * of_token(heads);
  int64_t sum = 0;
  for (auto at = offsets_.begin(), next = at; at != offsets_.end(); at = next) {
    next = std::upper_bound(at, offsets_.end(), *at);
    sum += (next - at) * at_offset(*at, tokens);
  }
  return sum;
}

RowMap::RowMap(const ShardedProblem& sharded, TensorKind kind, const Slice& slice)
    : sharded_(sharded),
      kind_(kind),
      slice_(slice),
      count_(sharded, kind, slice),
      bytes_per_row_(row_bytes(sharded.problem, kind)) {
  pieces_.reserve(size_t(slice.num_pieces()));
  for (int i = 0; i < slice.num_pieces(); ++i) {
    const Rank owner = slice.owners[i / slice.head_parts];
    if (slice.branch == kAllValues) {
      const int64_t values = values_of({.rows = slice, .pieces = {i, 1}}).length();
      pieces_.push_back(
          {.owner = owner, .heads = slice.heads, .byte_offset = bytes_, .rows = values});
      bytes_ += piece_bytes(pieces_.back());
      continue;
    }
    Piece piece{.owner = owner,
                .heads = head_part(slice, i % slice.head_parts),
                .tokens = owned_tokens(sharded, owner, slice.within),
                .byte_offset = bytes_};
    for (const KvStream& stream : count_.streams().streams) {
      piece.stream_begin.push_back(piece.rows_per_item);
      piece.rows_per_item += count_.at_offset(stream.offset, piece.tokens);
    }
    if (slice.branch == kEveryRow) piece.rows_per_item = count_.of(piece.tokens, piece.heads);
    piece.rows = piece.rows_per_item * sharded.problem.batch;
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

std::vector<int64_t> RowMap::heads_with_rows(const HeadRange& range) const {
  std::vector<int64_t> heads;
  std::set<int64_t> seen;
  for (int64_t head = range.first; head < range.end(); ++head) {
    int64_t rows = head;
    if (holds_keys(kind_))
      rows = slice_.branch == kEveryRow
                 ? sharded_.problem.kv_head_of(head)
                 : count_.streams().of_head[size_t(head - slice_.heads.first)];
    if (seen.insert(rows).second) heads.push_back(head);
  }
  return heads;
}

RowMap::Place RowMap::locate(const Piece& piece, int64_t batch, int64_t head,
                             const TokenRange& run) const {
  const int64_t item = batch * piece.rows_per_item;
  const int64_t index = piece.tokens.index_of(run.first);
  check(index >= 0 && piece.tokens.index_of(run.last()) >= index, "tokens ", run.first, " to ",
        run.last(), " are not in this piece");
  if (slice_.branch == kEveryRow) {
    const AttentionProblem& p = sharded_.problem;
    const int64_t width = count_.of_token(piece.heads);
    const int64_t column = holds_keys(kind_) ? p.kv_head_of(head) - p.kv_head_of(piece.heads.first)
                                             : head - piece.heads.first;
    const int64_t stride = run.first >= piece.tokens.range[1].first && piece.tokens.count > 1
                               ? piece.tokens.range[1].stride
                               : piece.tokens.range[0].stride;
    return {item + index * width + column, run.stride / stride * width};
  }
  check(slice_.heads.contains(head), "head ", head, " is not in this slice");
  const auto stream = size_t(count_.streams().of_head[size_t(head - slice_.heads.first)]);
  TokenRanges earlier;
  for (const TokenRange& r : piece.tokens) earlier.add(clip(r, {r.first, run.first}));
  return {item + piece.stream_begin[stream] +
              count_.at_offset(count_.streams().streams[stream].offset, earlier),
          1};
}

}  // namespace longnet
