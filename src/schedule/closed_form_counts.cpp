#include "schedule/closed_form_counts.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/check.h"
#include "schedule/message_costs.h"

namespace longnet {
namespace {

// Items of part i, and items before it, of n in nearly equal parts, the longer parts first.
int64_t size_of_part(int64_t n, int64_t parts, int64_t i) {
  return n / parts + (i < n % parts ? 1 : 0);
}
int64_t start_of_part(int64_t n, int64_t parts, int64_t i) {
  return i * (n / parts) + std::min(i, n % parts);
}

int64_t ceil_quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One algorithm each. q_, kv_, o_, statistics_ and grad_kv_ are bytes of a token and head, of all
// sequences of the batch: of Q, dO or a result, of K and V, of O in fp32 with its LSE, of L and
// delta, of dK and dV in fp32.
class ClosedForms {
 public:
  // `degree`: ranks that share an all-to-all (Pu).
  ClosedForms(const ShardedProblem& s, const CollectiveChoice& choice, int degree, Rank rank,
              Pass pass)
      : s_(s),
        choice_(choice),
        n_(s.problem.seq_len),
        heads_(s.problem.num_heads),
        kv_heads_(s.problem.num_kv_heads),
        world_(s.layout.world_size()),
        me_(rank),
        degree_(degree),
        q_(s.problem.batch * s.problem.head_dim * (s.problem.dtype == DType::kFloat32 ? 4 : 2)),
        kv_(2 * q_),
        o_(s.problem.batch *
           (s.problem.head_dim * (s.problem.output_dtype == DType::kFloat32 ? 4 : 2) + 4)),
        statistics_(s.problem.batch * 8),
        grad_kv_(pass == Pass::kBackward ? s.problem.batch * 2 * s.problem.head_dim * 4 : 0),
        backward_(pass == Pass::kBackward) {
    const bool zigzag = s.layout.kind() == LayoutKind::kZigzag;
    for (int p = 0; p < world_; ++p) {
      const int64_t chunks = 2 * int64_t{world_ / degree}, i = p / degree;
      const int64_t both = size_of_part(n_, chunks, i) + size_of_part(n_, chunks, chunks - 1 - i);
      tokens_.push_back(zigzag ? size_of_part(both, degree, p % degree)
                               : size_of_part(n_, world_, p));
    }
    largest_ = std::ranges::max(tokens_);
    mine_ = tokens_[size_t(rank)];
    from_forward_ = mine_ * (heads_ * (q_ + o_) + kv_heads_ * kv_);  // Q, output; K and V
    costs_.hold(from_forward_);
    // dO, L and delta, dQ; dK and dV.
    if (backward_)
      costs_.hold(mine_ * (heads_ * (q_ + statistics_ + grad_kv_ / 2) + kv_heads_ * grad_kv_));
  }
  const RankCounts& counts() const { return costs_.counts; }
  // Bytes that a backward pass holds and the forward pass holds too.
  int64_t from_forward() const { return from_forward_; }

  // Liu et al.: P - 1 shards pass through two buffers; a partial is merged into the output.
  void ring() {
    keys_around(tokens_, kv_heads_, me_);
    hold_ring(buffers(world_), sum_buffers(world_));
  }
  // Backward Q, dO, L and delta pass through two buffers each, and the sums of dQ follow.
  void query_ring() {
    if (!backward_) return ring();
    const int64_t q = heads_ * q_, statistics = heads_ * s_.problem.batch * 8,
                  grad_q = heads_ * grad_kv_ / 2;
    for (const int64_t row : {q, q, statistics}) costs_.shards_around(times(tokens_, row), me_);
    sums_around(times(tokens_, grad_q), me_);
    costs_.hold(largest_ * (buffers(world_) * (2 * q + statistics) + sum_buffers(world_) * grad_q));
  }
  // Half of the heads each way, each with two buffers of its own.
  void bidirectional_ring() {
    const int64_t half = kv_heads_ / 2;
    keys_around(tokens_, half, me_);
    keys_around(tokens_, kv_heads_ - half, me_, -1);
    hold_ring(world_ > 1 ? 2 : 0, sum_buffers(world_));
  }
  // Each of Po nodes' shards goes around the inner ring of Pi, the own place's around the outer.
  void double_ring() {
    const int inner = s_.options.ring_inner > 0 ? s_.options.ring_inner : root_divisor(world_);
    const int outer = world_ / inner, place = me_ % inner;
    Sizes of_place;
    for (int node = 0; node < outer; ++node) {
      of_place.push_back(tokens_[size_t(node * inner + place)]);
      const auto begin = tokens_.begin() + int64_t{node} * inner;
      keys_around({begin, begin + inner}, kv_heads_, place);
    }
    keys_around(of_place, kv_heads_, me_ / inner);
    hold_ring(buffers(inner) + buffers(outer), sum_buffers(inner) + sum_buffers(outer));
  }
  // Llama 3: 2 N G d e; by slices of s heads two buffers of 2 N s d e.
  void all_gather() {
    if (world_ == 1) return;
    const int64_t asked = s_.options.head_slice;
    const int64_t width = asked > 0 && asked < kv_heads_ ? asked : kv_heads_;
    for (int64_t first = 0; first < kv_heads_; first += width) {
      const int64_t heads = std::min(width, kv_heads_ - first);
      costs_.all_gather(times(tokens_, heads * kv_), me_, 0, choice_);
      if (backward_) costs_.reduce_scatter(times(tokens_, heads * grad_kv_), me_, choice_, false);
    }
    costs_.hold(n_ * width * (kv_ + grad_kv_) * (width < kv_heads_ ? 2 : 1));
  }
  // All queries come, all partials go; backward also dO, L and delta come, and dQ goes.
  void query_gather() {
    if (world_ == 1) return;
    const int64_t summed = backward_ ? grad_kv_ / 2 : o_;
    const auto gather = [&](int64_t row) {
      costs_.all_gather(times(tokens_, heads_ * row), me_, 0, choice_);
      costs_.hold(n_ * heads_ * row);
    };
    gather(q_);
    if (backward_) gather(q_), gather(statistics_);
    costs_.hold(n_ * heads_ * summed);
    costs_.reduce_scatter(times(tokens_, heads_ * summed), me_, choice_, false);
  }
  // Jacobs et al., Fang and Zhao: in groups of Pu ranks three all-to-alls, of Q, of K with V, of
  // the result; around Pr = P / Pu groups a ring of K and V. Backward dO goes out, dQ, dK with dV
  // come back, and Q, K, V and O are kept.
  void usp() {
    const int group = me_ / degree_, place = me_ % degree_, rings = world_ / degree_;
    Sizes of_group(static_cast<size_t>(rings), 0);
    for (int p = 0; p < world_; ++p) of_group[size_t(p / degree_)] += tokens_[size_t(p)];
    const int64_t here = of_group[size_t(group)], h = heads_at(place), g = kv_heads_at(place);
    int64_t packed_kv = 0;  // a K/V head that ranks share goes to each of them
    for (int i = 0; i < degree_; ++i) packed_kv += kv_heads_at(i);
    const int64_t out_kv = backward_ ? 0 : kv_, back_q = backward_ ? grad_kv_ / 2 : q_;
    for (int i = 0; i < degree_; ++i) {
      if (i == place) continue;
      const int64_t theirs = tokens_[size_t(group * degree_ + i)];
      const int64_t h_there = heads_at(i), g_there = kv_heads_at(i);
      costs_.send(mine_ * h_there * q_);
      costs_.send(mine_ * g_there * out_kv);
      costs_.send(theirs * h * back_q);
      costs_.send(theirs * g * grad_kv_);
      costs_.receive(theirs * h * q_);
      costs_.receive(theirs * g * out_kv);
      costs_.receive(mine_ * h_there * back_q);
      costs_.receive(mine_ * g_there * grad_kv_);
    }
    if (degree_ > 1) {
      costs_.hold((mine_ * heads_ + here * h) * (q_ + back_q) +
                  (mine_ * packed_kv + here * g) * (out_kv + grad_kv_) + here * h * o_);
      if (backward_) costs_.hold(here * (h * (q_ + statistics_) + g * kv_));
      from_forward_ += here * (h * (q_ + o_) + g * kv_);  // Q, K, V and O of the attended heads
    }
    keys_around(of_group, g, group);
    costs_.hold(std::ranges::max(of_group) * g *
                (buffers(rings) * kv_ + sum_buffers(rings) * grad_kv_));
    if (rings > 1 && !backward_) costs_.hold(here * h * o_);
  }
  void dilated() {
    const int64_t begin = start_of_part(n_, world_, me_), end = begin + mine_;
    int direct = -1;  // the branch that is written in place
    for (int b = int(s_.pattern.branches.size()) - 1; b >= 0; --b)
      if (s_.pattern.branches[size_t(b)].dilation_rate == 1) direct = b;
    int64_t partial = 0;  // one buffer, for the largest part
    for (int b = 0; b < int(s_.pattern.branches.size()); ++b)
      for (const auto& [from, to] : attended_parts(s_.pattern.branches[size_t(b)], begin, end))
        if (b != direct || backward_)
          partial = std::max(partial, query_rows(s_.pattern.branches[size_t(b)], from, to) * o_);
    if (!backward_ || s_.pattern.mix != MixRule::kLse) costs_.hold(partial);
  }

 private:
  using Interval = std::pair<int64_t, int64_t>;

  // P - 1 hops, which end at the owner.
  void sums_around(const Sizes& sums, int me, int direction = 1) {
    costs_.around(sums, me, me - direction);
  }
  // K and V of `tokens` go around a ring, backward the sums of their gradients too.
  void keys_around(const Sizes& tokens, int64_t kv_heads, int me, int direction = 1) {
    costs_.shards_around(times(tokens, kv_heads * kv_), me, direction);
    sums_around(times(tokens, kv_heads * grad_kv_), me, direction);
  }
  static int buffers(int members) { return std::min(2, members - 1); }
  // Two parts of the own and one sum that arrives.
  static int sum_buffers(int members) { return members > 1 ? buffers(members) + 1 : 0; }
  void hold_ring(int keys, int sums) {
    costs_.hold(largest_ * kv_heads_ * (keys * kv_ + sums * grad_kv_));
    if (!backward_ && world_ > 1) costs_.hold(mine_ * heads_ * o_);
  }
  int64_t heads_at(int place) const { return size_of_part(heads_, degree_, place); }
  int64_t kv_heads_at(int place) const {
    const int64_t first = start_of_part(heads_, degree_, place), count = heads_at(place);
    const int64_t shared_by = heads_ / kv_heads_;
    return count == 0 ? 0 : (first + count - 1) / shared_by - first / shared_by + 1;
  }

  // ---- dilated ----

  int64_t segment_length(const DilatedBranch& b) const {
    return b.summary_tokens > 0 ? b.segment_length : std::min(b.segment_length, n_);
  }
  // LongNet: o_j = j mod r. Sparse Transformer: the sub-block that head j looks at.
  int64_t offset(const DilatedBranch& b, int64_t head) const {
    const int64_t all = b.summary_tokens > 0
                            ? std::max<int64_t>(1, b.segment_length / b.summary_tokens)
                            : b.dilation_rate;
    if (s_.pattern.offset == OffsetRule::kNone) return 0;
    return s_.pattern.offset == OffsetRule::kBlock ? head / ceil_quotient(heads_, all) : head % all;
  }
  // Selected tokens among the first `length` of a segment, and of a sequence.
  static int64_t selected(const DilatedBranch& b, int64_t at, int64_t length) {
    if (b.summary_tokens > 0)
      return std::clamp<int64_t>(length - (b.segment_length - b.summary_tokens * (at + 1)), 0,
                                 b.summary_tokens);
    return length > at ? ceil_quotient(length - at, b.dilation_rate) : 0;
  }
  int64_t selected_before(const DilatedBranch& b, int64_t at, int64_t end) const {
    const int64_t w = segment_length(b);
    return end / w * selected(b, at, w) + selected(b, at, end % w);
  }
  int64_t query_rows(const DilatedBranch& b, int64_t from, int64_t to) const {
    if (b.summary_tokens > 0) return (to - from) * heads_;
    int64_t rows = 0;
    for (int64_t j = 0; j < heads_; ++j)
      rows += selected_before(b, offset(b, j), to) - selected_before(b, offset(b, j), from);
    return rows;
  }

  // Gathers what `b` selects in [from, to) among the ranks that own some of it, or among all.
  void gather(const DilatedBranch& b, int64_t from, int64_t to, bool among_all) {
    // Heads that share a K/V head and an offset share rows.
    std::set<std::pair<int64_t, int64_t>> streams;
    for (int64_t j = 0; j < heads_; ++j) streams.emplace(j / (heads_ / kv_heads_), offset(b, j));
    Sizes pieces;
    int first = -1;
    for (int p = 0; p < world_; ++p) {
      const int64_t begin = std::max(from, start_of_part(n_, world_, p));
      const int64_t end = std::min(to, start_of_part(n_, world_, p + 1));
      if (begin >= end && !among_all) continue;
      if (first < 0) first = p;
      int64_t rows = 0;
      for (const auto& [unused, at] : streams)
        rows += selected_before(b, at, end) - selected_before(b, at, begin);
      pieces.push_back(rows);
    }
    const auto gathered = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
    costs_.hold(gathered * (kv_ + grad_kv_));
    if (backward_ && s_.options.keep_gathered)
      from_forward_ += gathered * kv_;
    else
      costs_.all_gather(times(pieces, kv_), me_ - first, first, choice_);
    if (backward_) costs_.reduce_scatter(times(pieces, grad_kv_), me_ - first, choice_, true);
  }
  bool gathers_from_all(const DilatedBranch& b) const {
    if (b.summary_tokens > 0) return world_ > 1;
    if (s_.gather_scope != GatherScope::kWholeWorld) return false;
    for (int p = 1; p < world_; ++p)
      if (tokens_[size_t(p)] > 0 && start_of_part(n_, world_, p) % segment_length(b) != 0)
        return true;
    return false;
  }
  // Queries of the shard [begin, end) that are attended together: those of segments that lie inside
  // it, and of each that crosses its border, which is gathered.
  std::vector<Interval> attended_parts(const DilatedBranch& b, int64_t begin, int64_t end) {
    if (gathers_from_all(b)) gather(b, 0, n_, true);
    if (begin == end) return {};
    if (gathers_from_all(b) || b.summary_tokens > 0) return {{begin, end}};
    std::vector<Interval> parts;
    int64_t local = begin;
    const int64_t w = segment_length(b);
    for (int64_t at = begin; at < end;) {
      const int64_t from = at / w * w, to = std::min(from + w, n_);
      const bool inside = from >= begin && to <= end;
      if (!inside) {
        gather(b, from, to, false);
        if (local < at) parts.emplace_back(local, at);
        parts.emplace_back(at, std::min(to, end));
        local = std::min(to, end);
      }
      // Between the first and the last segment all lie inside.
      at = inside && at > begin ? std::max(to, (end - 1) / w * w) : to;
    }
    if (local < end) parts.emplace_back(local, end);
    return parts;
  }

  const ShardedProblem& s_;
  const CollectiveChoice& choice_;
  int64_t n_, heads_, kv_heads_;
  int world_, me_, degree_;
  int64_t q_, kv_, o_, statistics_, grad_kv_;
  bool backward_;
  Sizes tokens_;  // by rank
  int64_t largest_ = 0, mine_ = 0, from_forward_ = 0;
  Costs costs_;
};

int all_ranks(const ShardedProblem& s) { return s.layout.world_size(); }
int chosen_degree(const ShardedProblem& s) {
  return s.options.ulysses_degree > 0
             ? s.options.ulysses_degree
             : int(std::gcd(int64_t{s.layout.world_size()}, s.problem.num_kv_heads));
}

struct AlgorithmForm {
  std::string_view algorithm;
  void (ClosedForms::*form)();
  int (*degree)(const ShardedProblem&) = nullptr;  // Pu; null: 1
};
constexpr AlgorithmForm kForms[] = {
    {"local", &ClosedForms::ring},
    {"ring", &ClosedForms::ring},
    {"query_ring", &ClosedForms::query_ring},
    {"bidirectional_ring", &ClosedForms::bidirectional_ring},
    {"double_ring", &ClosedForms::double_ring},
    {"all_gather", &ClosedForms::all_gather},
    {"query_gather", &ClosedForms::query_gather},
    {"ulysses", &ClosedForms::usp, all_ranks},
    {"usp", &ClosedForms::usp, chosen_degree},
    {"dilated", &ClosedForms::dilated},
    {"sparse", &ClosedForms::dilated},
};

std::optional<ClosedForms> forms_of(std::string_view algorithm, const ShardedProblem& s,
                                    const CollectiveChoice& choice, Rank rank, Pass pass) {
  const auto* const found = std::ranges::find(kForms, algorithm, &AlgorithmForm::algorithm);
  if (found == std::end(kForms) || s.pattern.phase_parts > 1) return std::nullopt;
  ClosedForms forms(s, choice, found->degree ? found->degree(s) : 1, rank, pass);
  (forms.*found->form)();
  return forms;
}

}  // namespace

std::string to_text(const RankCounts& c) {
  return concat(c.bytes_sent, " B sent in ", c.messages_sent, " messages, ", c.bytes_received,
                " B received in ", c.messages_received, ", ", c.memory_bytes, " B held");
}

std::optional<RankCounts> closed_form_counts(std::string_view algorithm, const ShardedProblem& s,
                                             const CollectiveChoice& choice, Rank rank, Pass pass) {
  if (pass != Pass::kForwardBackward) {
    const auto forms = forms_of(algorithm, s, choice, rank, pass);
    return forms ? std::optional(forms->counts()) : std::nullopt;
  }
  const auto forward = forms_of(algorithm, s, choice, rank, Pass::kForward);
  const auto backward = forms_of(algorithm, s, choice, rank, Pass::kBackward);
  if (!forward || !backward) return std::nullopt;
  RankCounts both = forward->counts();
  const RankCounts& then = backward->counts();
  both.bytes_sent += then.bytes_sent;
  both.messages_sent += then.messages_sent;
  both.bytes_received += then.bytes_received;
  both.messages_received += then.messages_received;
  both.memory_bytes += then.memory_bytes - backward->from_forward();
  return both;
}

}  // namespace longnet
