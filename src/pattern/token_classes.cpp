#include "pattern/token_classes.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace longnet {
namespace {

// The x with a x = gcd(a, m) (mod m), in [0, m): an inverse when a and m have no common divisor.
int64_t inverse_mod(int64_t a, int64_t m) {
  int64_t r0 = m, r1 = a % m, x0 = 0, x1 = 1;
  while (r1 != 0) {
    const int64_t q = r0 / r1;
    r0 -= q * r1;
    std::swap(r0, r1);
    x0 -= q * x1;
    std::swap(x0, x1);
  }
  return ((x0 % m) + m) % m;
}

bool selects(const Dilation& branch, int64_t phase, int64_t x) {
  return phase != kNoSelection && (phase + x) % branch.rate < branch.num_offsets;
}

// Visits the branches one after the other, each with every offset and with "not selected". The
// tokens that are left form one residue class, less those that a branch visited as "not selected"
// would select.
class ResidueSearch {
 public:
  ResidueSearch(std::span<const Dilation> branches, std::span<const int64_t> phases, int64_t length)
      : branches_(branches), phases_(phases), length_(length), offsets_(branches.size()) {}

  std::vector<TokenClass> run() {
    visit(0, {0, 1, length_});
    return std::move(found_);
  }

 private:
  void visit(size_t b, const TokenRange& tokens) {
    if (b == branches_.size()) return emit(tokens);
    const Dilation& branch = branches_[b];
    if (phases_[b] != kNoSelection) {
      // first + j stride = o - phase (mod rate) has solutions j when gcd(stride, rate) divides the
      // difference: then one in every rate / gcd.
      const int64_t g = std::gcd(tokens.stride, branch.rate), period = branch.rate / g;
      const int64_t inverse = period > 1 ? inverse_mod(tokens.stride / g, period) : 0;
      for (int64_t o = 0; o < branch.num_offsets; ++o) {
        const int64_t gap =
            ((o - phases_[b] - tokens.first) % branch.rate + branch.rate) % branch.rate;
        if (gap % g != 0) continue;
        const int64_t j = int64_t(__int128{gap / g} * inverse % period);
        if (j >= tokens.count) continue;
        offsets_[b] = int32_t(o);
        // A single token needs no stride, and period * stride could overflow.
        const int64_t count = 1 + (tokens.count - 1 - j) / period;
        visit(b + 1, {tokens[j], count > 1 ? tokens.stride * period : 1, count});
      }
      if (branch.num_offsets == branch.rate) return;
      excluded_.push_back(b);
    }
    offsets_[b] = kNoOffset;
    visit(b + 1, tokens);
    if (phases_[b] != kNoSelection) excluded_.pop_back();
  }

  bool is_excluded(int64_t x) const {
    return std::ranges::any_of(excluded_,
                               [&](size_t b) { return selects(branches_[b], phases_[b], x); });
  }

  void emit(const TokenRange& tokens) {
    // Exclusions repeat, so that one period decides whether any token is left.
    __int128 period = 1;
    for (const size_t b : excluded_) {
      const int64_t own = branches_[b].rate / std::gcd(tokens.stride, branches_[b].rate);
      period = period / std::gcd(int64_t(period), own) * own;
      if (period >= tokens.count) break;
    }
    const int64_t steps = int64_t(std::min<__int128>(period, tokens.count));
    int64_t front = 0, back = tokens.count - 1;
    while (front < steps && is_excluded(tokens[front])) ++front;
    if (front == steps) return;
    while (is_excluded(tokens[back])) --back;
    found_.push_back({offsets_, tokens[front], tokens[back]});
  }

  std::span<const Dilation> branches_;
  std::span<const int64_t> phases_;
  int64_t length_;
  std::vector<int32_t> offsets_;
  std::vector<size_t> excluded_;
  std::vector<TokenClass> found_;
};

}  // namespace

int64_t count_offsets(OffsetRule rule, int64_t num_heads, int64_t dilation_rate) {
  return rule == OffsetRule::kPaper
             ? std::min(num_heads, dilation_rate)
             : head_offset(rule, num_heads - 1, num_heads, dilation_rate) + 1;
}

std::vector<TokenClass> token_classes(std::span<const Dilation> branches,
                                      std::span<const int64_t> phases, int64_t length) {
  check(branches.size() == phases.size(), "a phase per branch: ", branches.size(), " and ",
        phases.size());
  auto out = ResidueSearch(branches, phases, length).run();
  std::ranges::sort(out, {}, &TokenClass::offsets);
  return out;
}

BranchLayout::BranchLayout(const AttentionProblem& problem, const DilatedPattern& pattern)
    : seq_len_(problem.seq_len), parts_(std::min(pattern.phase_parts, problem.seq_len)) {
  for (size_t b = 0; b < pattern.branches.size(); ++b) {
    rows_.emplace_back(pattern, int(b), problem);
    const int64_t rate = rows_.back().dilation_rate();
    dilations_.push_back({rate, count_offsets(pattern.offset, problem.num_heads, rate)});
  }
}

int64_t BranchLayout::count_borders() const {
  int64_t count = parts_;
  for (const BranchRows& rows : rows_) count += rows.num_segments();
  return count;
}

std::vector<int64_t> BranchLayout::borders() const {
  std::vector<int64_t> at;
  for (const BranchRows& rows : rows_)
    for (int64_t i = 0; i < rows.num_segments(); ++i) at.push_back(rows.segment(i).begin);
  for (int64_t p = 0; p <= parts_; ++p) at.push_back(part_begin(seq_len_, parts_, p));
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  return at;
}

int64_t BranchLayout::residue(size_t b, int64_t token) const {
  const int64_t rate = dilations_[b].rate;
  return (rate - (rows_[b].select(0, {token, token + 1}).first - token)) % rate;
}

const std::vector<TokenClass>& BranchLayout::classes(TokenInterval interval) {
  key_.clear();
  for (size_t b = 0; b < rows_.size(); ++b) {
    const auto [rate, offsets] = dilations_[b];
    const int64_t phase = residue(b, interval.begin);
    const bool hit = phase < offsets || phase + interval.length() > rate;
    key_.push_back(hit ? phase : kNoSelection);
  }
  key_.push_back(interval.length());
  const auto [place, is_new] = classes_.try_emplace(key_);
  if (is_new)
    place->second =
        token_classes(dilations_, std::span(key_).first(rows_.size()), interval.length());
  return place->second;
}

bool BranchLayout::same_group(int64_t a, int64_t b) const {
  for (size_t i = 0; i < rows_.size(); ++i)
    if (rows_[i].segment_of(a) == rows_[i].segment_of(b) && residue(i, a) == residue(i, b) &&
        residue(i, a) < dilations_[i].num_offsets)
      return true;
  return false;
}

}  // namespace longnet
