#include "io/expand.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/check.h"
#include "io/filter.h"
#include "io/point_json.h"
#include "io/sha256.h"
#include "json/text.h"
#include "pattern/pair_count.h"

namespace longnet {
namespace {

int64_t geometric_ratio(int64_t w, int64_t w0) {
  return std::max<int64_t>(1, (w + w0 / 2) / w0);  // rounds half up
}

int64_t sqrt_ratio(int64_t w, int64_t w0) {
  int shift = 0;  // the smallest 2^shift with 4^shift w0 >= w
  while (shift < 31 && (w >> (2 * shift)) + ((w & ((int64_t{1} << (2 * shift)) - 1)) != 0) > w0)
    ++shift;
  return int64_t{1} << shift;
}

int64_t ratio_of(const DilatedConfig& d, size_t index, int64_t w, int64_t w0, int64_t heads) {
  switch (d.ratio_rule) {
    case RatioRule::kGeometric:
      return geometric_ratio(w, w0);
    case RatioRule::kSqrt:
      return sqrt_ratio(w, w0);
    case RatioRule::kCapped:
      return std::min(geometric_ratio(w, w0), heads);
    case RatioRule::kList:
      return d.ratios.at(index);
  }
  return 1;
}

int64_t resolve_length(const SegmentSpec& s, int64_t seq_len, int64_t ranks) {
  switch (s.kind) {
    case SegmentSpec::Kind::kTokens:
      return std::min(s.tokens, seq_len);
    case SegmentSpec::Kind::kPerRank:
      return ceil_div(seq_len, ranks);
    case SegmentSpec::Kind::kSequence:
      return seq_len;
  }
  return seq_len;
}

template <class T>
std::vector<T> or_else(const std::vector<T>& values, const T& fallback) {
  std::vector<T> unique;
  for (const T& v : values)
    if (std::find(unique.begin(), unique.end(), v) == unique.end()) unique.push_back(v);
  if (unique.empty()) unique.push_back(fallback);
  return unique;
}

std::vector<int64_t> axis_or(const IntAxis& axis, int64_t world, int64_t fallback) {
  if (!axis.is_range && axis.values.empty()) return {fallback};
  return axis_values(axis, world);
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t total_pairs(const AttentionProblem& problem, const DilatedPattern& pattern) {
  int64_t pairs = 0;
  for (int b = 0; b < int(pattern.branches.size()); ++b) pairs += branch_pairs(problem, pattern, b);
  return pairs;
}

// The power of two nearest to sqrt(n); halfway counts as above: 4 n >= (3 p)^2 without roots.
int64_t sqrt_power_of_two(int64_t n) {
  int64_t p = 1;
  while (p <= n / (4 * p)) p *= 2;  // the largest with p^2 <= n
  return 4 * n >= 9 * p * p ? 2 * p : p;
}

// Walks the product of the axes, calls `visit` on the params of each combination.
class Product {
 public:
  Product(const Config& config, const ExpandOptions& options) : c_(config), o_(options) {}

  template <class Visit>
  void walk(Visit visit) {
    PointParams p;
    p.transport = o_.transport;
    for (const std::string& algorithm : or_else<std::string>(c_.sweep.algorithm, "dilated"))
      for (const std::string& kernel : or_else(c_.sweep.kernel, c_.run.kernel))
        for (const std::string& layout : layouts(algorithm))
          for (const std::string& collective : collectives(algorithm)) {
            p.algorithm = algorithm;
            p.kernel = kernel;
            p.layout = layout;
            p.collective = collective;
            walk_model(p, visit);
          }
  }

 private:
  bool is_dense(const std::string& algorithm) const {
    return !contains(o_.known.dilated_algorithms, algorithm) &&
           !contains(o_.known.sparse_algorithms, algorithm);
  }

  std::vector<std::string> layouts(const std::string& algorithm) const {
    const std::string standard = "contiguous";
    if (!is_dense(algorithm) || contains(o_.known.contiguous_algorithms, algorithm))
      return {standard};
    return or_else(c_.sweep.layout, standard);
  }

  std::vector<std::string> collectives(const std::string& algorithm) const {
    const std::string standard = "native";
    std::vector<std::string> chosen = or_else(c_.sweep.collective, standard);
    const auto& of = o_.known.collectives_of;
    if (of.empty()) return chosen;
    const auto mine = of.find(algorithm);
    std::erase_if(chosen, [&](const std::string& name) {
      return name != standard && (mine == of.end() || !contains(mine->second, name));
    });
    if (chosen.empty()) chosen.push_back(standard);
    return chosen;
  }

  // Of an axis of options that only `concerned` algorithms have.
  std::vector<int64_t> option(const IntAxis& axis, const std::vector<std::string>& concerned,
                              const PointParams& p) const {
    const bool given = axis.is_range || !axis.values.empty();
    if (!given || !contains(concerned, p.algorithm)) return {0};
    return axis_values(axis, o_.world_size, p.ranks);
  }

  // Only the hierarchical gather knows nodes.
  std::vector<int64_t> node_sizes(const PointParams& p) const {
    if (p.collective != "hierarchical") return {0};
    return axis_or(c_.sweep.node_size, o_.world_size, 0);
  }

  template <class Visit>
  void walk_model(PointParams& p, Visit& visit) {
    const ModelConfig& m = c_.model;
    for (int64_t heads : axis_or(c_.sweep.heads, o_.world_size, m.heads))
      for (int64_t kv_heads : axis_or(c_.sweep.kv_heads, o_.world_size, m.kv_heads))
        for (int64_t head_dim : axis_or(c_.sweep.head_dim, o_.world_size, m.head_dim))
          for (DType dtype : or_else(c_.sweep.dtype, m.dtype))
            for (bool causal : or_else(c_.sweep.causal, m.causal)) {
              p.problem.num_heads = heads;
              p.problem.num_kv_heads = kv_heads > 0 ? kv_heads : heads;
              p.problem.head_dim = head_dim;
              p.problem.dtype = dtype;
              p.problem.causal = causal;
              walk_sizes(p, visit);
            }
  }

  template <class Visit>
  void walk_sizes(PointParams& p, Visit& visit) {
    for (int64_t seed : axis_or(c_.sweep.seed, o_.world_size, c_.model.seed))
      for (int64_t threads : axis_or(c_.sweep.threads, o_.world_size, c_.run.threads))
        for (int64_t ranks : axis_values(c_.sweep.ranks, o_.world_size)) {
          p.problem.seed = uint64_t(seed);
          p.threads = int(threads);
          p.ranks = int(ranks);
          walk_options(p, visit);
        }
  }

  template <class Visit>
  void walk_options(PointParams& p, Visit& visit) {
    const SweepConfig& s = c_.sweep;
    const KnownNames& known = o_.known;
    for (int64_t degree : option(s.ulysses_degree, known.ulysses_degree_algorithms, p))
      for (int64_t inner : option(s.ring_inner, known.ring_inner_algorithms, p))
        for (int64_t slice : option(s.head_slice, known.head_slice_algorithms, p))
          for (int64_t node_size : node_sizes(p)) {
            p.ulysses_degree = int(degree);
            p.ring_inner = int(inner);
            p.head_slice = slice;
            p.node_size = int(node_size);
            for (int64_t replicas : axis_or(s.replicas, o_.world_size, 1))
              walk_lengths(p, replicas, visit);
          }
  }

  template <class Visit>
  void walk_lengths(PointParams& p, int64_t replicas, Visit& visit) {
    const SweepConfig& s = c_.sweep;
    for (int64_t seq_len : axis_values(s.seq_len, o_.world_size)) {
      p.problem.seq_len = seq_len;
      p.problem.batch = s.batch.constant_tokens
                            ? std::max<int64_t>(1, s.batch.tokens_per_batch / seq_len)
                            : s.batch.size;
      p.replicas =
          int(replicas == kMostReplicas ? std::gcd(p.problem.batch, int64_t{p.ranks}) : replicas);
      if (!fits_group(s.ulysses_degree, p.ulysses_degree, p) ||
          !fits_group(s.ring_inner, p.ring_inner, p))
        continue;
      set_pattern(p);
      PointParams resolved = p;  // p goes on to the next combination
      if (o_.resolve) o_.resolve(resolved);
      visit(resolved);
    }
  }

  // "divisors" are those of the ranks that share a sequence: of 8 ranks in two groups 1, 2 and 4.
  static bool fits_group(const IntAxis& axis, int64_t value, const PointParams& p) {
    if (p.replicas == 1 || std::ranges::find(axis.values, kDivisors) == axis.values.end())
      return true;
    return value == 0 || p.group_ranks() % value == 0;
  }

  // Options of dilation mean nothing to other algorithms: left at their defaults, so that ids
  // agree.
  void set_pattern(PointParams& p) const {
    p.gather_scope = PointParams{}.gather_scope;
    if (is_dense(p.algorithm)) {
      p.pattern = dense_pattern(p.problem.seq_len);
      return;
    }
    const DilatedConfig& d = c_.dilated;
    const DilatedPattern dilated{
        .branches = resolve_branches(d, p.problem.seq_len, p.group_ranks(), p.problem.num_heads),
        .offset = d.offset,
        .mix = d.mix,
        .phase_parts = d.phase == DilationPhase::kShard ? p.group_ranks() : 1};
    if (contains(o_.known.sparse_algorithms, p.algorithm)) {
      p.pattern = resolve_sparse(c_.sparse, p.problem, dilated);
    } else {
      p.pattern = dilated;
      p.gather_scope = d.gather_scope;
    }
    check_pattern(p.pattern, p.problem);
  }

  const Config& c_;
  const ExpandOptions& o_;
};

// How many combinations each rule removed, to explain an empty sweep.
struct Tally {
  int64_t all = 0, filtered = 0, too_many_ranks = 0, uneven = 0, runnable = 0;
  std::vector<int64_t> excluded;
};

[[noreturn]] void fail_empty(const Config& c, const ExpandOptions& o, const Tally& t) {
  std::string text = concat(c.path, ": no point left to run out of ", t.all, " combinations");
  if (t.filtered > 0) text += concat("\n  --filter '", o.filter, "' removed ", t.filtered);
  for (size_t i = 0; i < t.excluded.size(); ++i)
    if (t.excluded[i] > 0)
      text += concat("\n  exclude[", i, "] (", c.exclude[i].where, ": ", c.exclude[i].reason,
                     ") removed ", t.excluded[i]);
  if (t.too_many_ranks > 0)
    text +=
        concat("\n  ", t.too_many_ranks, " need more than the ", o.max_ranks, " ranks there are");
  if (t.uneven > 0)
    text +=
        concat("\n  ", t.uneven,
               " have replicas that do not divide both the batch and the ranks (\"auto\" does)");
  if (t.all == 0)
    text += "\n  an axis of the sweep has no value, e.g. ranks from 4 to \"world\" = 2";
  throw UsageError(text + "\n  hint: `lnbench plan` without --filter lists every point");
}

}  // namespace

std::vector<std::string> replaced_choices(const Config& c, const KnownNames& known) {
  std::vector<std::string> notes;
  const auto note = [&](const char* axis, const std::vector<std::string>& asked,
                        const std::string& standard, auto has) {
    if (asked.empty() || contains(asked, standard)) return;
    std::string who, what;
    for (const std::string& algorithm : or_else<std::string>(c.sweep.algorithm, "dilated"))
      if (std::none_of(asked.begin(), asked.end(),
                       [&](const std::string& name) { return has(algorithm, name); }))
        who += (who.empty() ? "" : ", ") + algorithm;
    for (const std::string& name : asked) what += (what.empty() ? "" : ", ") + name;
    if (!who.empty())
      notes.push_back(concat("no ", axis, " ", what, " for ", who, ": ", standard, " instead"));
  };
  note("collective", c.sweep.collective, "native",
       [&](const std::string& algorithm, const std::string& name) {
         const auto of = known.collectives_of.find(algorithm);
         return known.collectives_of.empty() ||
                (of != known.collectives_of.end() && contains(of->second, name));
       });
  note("layout", c.sweep.layout, "contiguous", [&](const std::string& algorithm, const auto&) {
    return !contains(known.dilated_algorithms, algorithm) &&
           !contains(known.sparse_algorithms, algorithm) &&
           !contains(known.contiguous_algorithms, algorithm);
  });
  return notes;
}

std::vector<DilatedBranch> resolve_branches(const DilatedConfig& dilated, int64_t seq_len,
                                            int64_t ranks, int64_t heads) {
  check(!dilated.segments.empty() && seq_len >= 1 && ranks >= 1, "branches of ",
        dilated.segments.size(), " segments, N = ", seq_len, ", P = ", ranks);
  std::vector<DilatedBranch> branches;
  const int64_t w0 = resolve_length(dilated.segments[0], seq_len, ranks);
  for (size_t i = 0; i < dilated.segments.size(); ++i) {
    const SegmentSpec& s = dilated.segments[i];
    const int64_t w = resolve_length(s, seq_len, ranks);
    if (i > 0 && s.kind != SegmentSpec::Kind::kTokens && w <= w0) continue;
    const DilatedBranch branch{w, ratio_of(dilated, i, w, w0, heads)};
    if (std::find(branches.begin(), branches.end(), branch) == branches.end())
      branches.push_back(branch);
  }
  return branches;
}

DilatedPattern resolve_sparse(const SparseConfig& sparse, const AttentionProblem& problem,
                              const DilatedPattern& dilated) {
  const int64_t w =
      std::min(sparse.segment.value_or(sqrt_power_of_two(problem.seq_len)), problem.seq_len);
  if (sparse.summary) return sparse_pattern(w, std::min(*sparse.summary, w));
  const int64_t target = total_pairs(problem, dilated);
  const auto pairs = [&](int64_t c) { return total_pairs(problem, sparse_pattern(w, c)); };
  int64_t low = 1, high = w;  // the smallest c with at least as many pairs, or w
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (pairs(middle) >= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const auto distance = [&](int64_t c) { return std::abs(pairs(c) - target); };
  return sparse_pattern(w, low > 1 && distance(low - 1) <= distance(low) ? low - 1 : low);
}

namespace {

// "" when every group gets as many ranks and sequences as the others.
std::string why_uneven(const PointParams& p) {
  if (p.ranks % p.replicas != 0)
    return concat("the replicas must divide the ranks: ", p.ranks, " ranks make no ", p.replicas,
                  " equal groups");
  if (p.problem.batch % p.replicas != 0)
    return concat("the replicas must divide the batch: ", p.replicas, " groups cannot share ",
                  p.problem.batch, p.problem.batch == 1 ? " sequence" : " sequences");
  return "";
}

}  // namespace

std::string canonical_params_json(const PointParams& params) {
  JsonNode all = params_to_node(params), kept = JsonNode::object();
  for (size_t i = 0; i < all.keys.size(); ++i)
    if (all.keys[i] != "transport" && all.keys[i] != "pattern") kept.set(all.keys[i], all.items[i]);
  return dump_json(kept, -1, true);
}

std::string point_id(const PointParams& params) {
  return sha256_hex(canonical_params_json(params)).substr(0, 8);
}

std::vector<Point> expand(const Config& config, const ExpandOptions& options) {
  const Filter filter(options.filter, known_values(options.known));
  std::vector<Filter> excludes;
  for (const ExcludeRule& rule : config.exclude) excludes.emplace_back(rule.where);
  std::vector<Point> points;
  std::set<std::string> seen;
  Tally tally;
  tally.excluded.resize(excludes.size());
  Product(config, options).walk([&](const PointParams& params) {
    Point point{.id = point_id(params), .params = params, .reason = {}};
    if (!seen.insert(point.id).second) return;
    ++tally.all;
    if (!filter.matches(point)) {
      ++tally.filtered;
      return;
    }
    for (size_t i = 0; i < excludes.size() && point.status == PointStatus::kOk; ++i) {
      if (!excludes[i].matches(point)) continue;
      ++tally.excluded[i];
      if (config.exclude[i].omit) return;
      point.status = PointStatus::kSkippedExcluded;
      point.reason = config.exclude[i].reason;
    }
    if (point.status == PointStatus::kOk && options.max_ranks > 0 &&
        params.ranks > options.max_ranks) {
      point.status = PointStatus::kSkippedUnsupported;
      point.reason = concat("needs ", params.ranks, " ranks, there are ", options.max_ranks);
      ++tally.too_many_ranks;
    }
    if (const std::string why = why_uneven(params);
        point.status == PointStatus::kOk && !why.empty()) {
      point.status = PointStatus::kSkippedUnsupported;
      point.reason = why;
      ++tally.uneven;
    }
    tally.runnable += point.status == PointStatus::kOk;
    points.push_back(std::move(point));
  });
  if (tally.runnable == 0) fail_empty(config, options, tally);
  return points;
}

}  // namespace longnet
