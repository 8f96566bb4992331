#include "schedule/sharded_problem.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {

HeadRange intersect(const HeadRange& a, const HeadRange& b) {
  const int64_t begin = std::max(a.first, b.first);
  return {begin, std::max<int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

int64_t TokenRanges::tokens() const {
  int64_t sum = 0;
  for (const TokenRange& r : *this) sum += r.count;
  return sum;
}

int64_t TokenRanges::index_of(int64_t token) const {
  int64_t before = 0;
  for (const TokenRange& r : *this) {
    const int64_t distance = token - r.first;
    if (distance >= 0 && distance % r.stride == 0 && distance / r.stride < r.count)
      return before + distance / r.stride;
    before += r.count;
  }
  return -1;
}

namespace {

TokenRange as_range(TokenInterval i) { return {i.begin, 1, i.length()}; }

TokenInterval part(int64_t length, int64_t parts, int64_t i) {
  return {part_begin(length, parts, i), part_begin(length, parts, i + 1)};
}

}  // namespace

TokenRanges SequenceLayout::shard(Rank rank) const {
  const int p = grid_.position(rank), sharing = grid_.sequence;
  TokenRanges out;
  if (kind_ == LayoutKind::kContiguous) {
    out.add(as_range(part(seq_len_, sharing, p)));
  } else if (kind_ == LayoutKind::kStriped) {
    out.add({p, sharing, p < seq_len_ ? ceil_div(seq_len_ - p, sharing) : 0});
  } else {
    check(sharing % ring_size_ == 0, "a zigzag of ", ring_size_, " positions on ", sharing,
          " ranks");
    const int sharers = sharing / ring_size_, position = p / sharers;
    const int64_t chunks = 2 * int64_t{ring_size_};
    const TokenInterval early = part(seq_len_, chunks, position);
    const TokenInterval late = part(seq_len_, chunks, chunks - 1 - position);
    // This rank's part of the two chunks, put one after the other.
    const TokenInterval mine = part(early.length() + late.length(), sharers, p % sharers);
    const int64_t to_late = late.begin - early.length();
    out.add(as_range(intersect({early.begin + mine.begin, early.begin + mine.end}, early)));
    out.add(as_range(intersect({to_late + mine.begin, to_late + mine.end}, late)));
  }
  return out;
}

TokenInterval SequenceLayout::interval(Rank p) const {
  check(kind_ == LayoutKind::kContiguous, "shards of the layout ", to_string(kind_),
        " are no intervals");
  return part(seq_len_, grid_.sequence, grid_.position(p));
}

Rank SequenceLayout::owner(int64_t token) const {
  check(token >= 0 && token < seq_len_, "token ", token, " outside [0, ", seq_len_, ")");
  check(kind_ == LayoutKind::kContiguous, "owner() knows contiguous shards only");
  return Rank(part_index(seq_len_, grid_.sequence, token));
}

}  // namespace longnet
