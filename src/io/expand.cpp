#include "io/expand.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/check.h"
#include "io/filter.h"

namespace longnet {
namespace {

int64_t geometric_ratio(int64_t w, int64_t w0) {
  return std::max<int64_t>(1, (w + w0 / 2) / w0);  // rounds half up
}

int64_t sqrt_ratio(int64_t w, int64_t w0) {
  int shift = 0;  // the smallest 2^shift with 4^shift w0 >= w
  while (shift < 31 && ceil_div(w, int64_t{1} << 2 * shift) > w0) ++shift;
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

int64_t resolve_length(const Value& segment, int64_t seq_len, int64_t ranks) {
  if (const auto* tokens = std::get_if<int64_t>(&segment)) return std::min(*tokens, seq_len);
  return segment == Value(kPerRank) ? ceil_div(seq_len, ranks) : seq_len;
}

double total_pairs(const AttentionProblem& problem, const DilatedPattern& pattern) {
  double pairs = 0;
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
struct Product {
  const Config& c;
  const ExpandOptions& o;
  std::function<void(const PointParams&)> visit;

  // Sets the axes from the i-th on.
  void walk(PointParams& p, size_t i = 0) const {
    if (i == axes().size()) return finish(p);
    for (const Value& value : values_of(axes()[i], p)) {
      axes()[i].member.set(p, value);
      walk(p, i + 1);
    }
  }

  // An algorithm that does not read an axis, or none of the values asked for, has its default.
  std::vector<Value> values_of(const Axis& axis, const PointParams& p) const {
    if (axis.key == "mode") return {to_value(o.mode)};
    if (axis.key == "transport") return {o.transport};
    if (axis.key == "scope") return {axis.member.get(p)};
    std::vector<Value> values = c.values_of(axis, o.world_size, p.ranks);
    if (values.empty()) return values;  // a range without any
    std::erase_if(values, [&](const Value& v) { return !reads(axis, v, p, o.known); });
    if (values.empty()) values.push_back(axis.standard);
    return values;
  }

  // Sets what depends on several axes, then visits the point. A copy: walk() reuses its own.
  void finish(PointParams p) const {
    AttentionProblem& problem = p.problem;
    const BatchConfig& batch = c.sweep.batch;
    if (problem.num_kv_heads == 0) problem.num_kv_heads = problem.num_heads;
    problem.batch = batch.constant_tokens
                        ? std::max<int64_t>(1, batch.tokens_per_batch / problem.seq_len)
                        : batch.size;
    if (p.replicas == 0)  // kMostReplicas
      p.replicas = p.ranks % p.head_groups == 0
                       ? int(std::gcd(problem.batch, int64_t{p.ranks / p.head_groups}))
                       : 1;
    if (!divisors_fit(p)) return;
    set_pattern(p);
    if (o.resolve) o.resolve(p);
    visit(p);
  }

  // "divisors" are those of the ranks that share a sequence: of 8 ranks in two groups 1, 2 and 4.
  bool divisors_fit(const PointParams& p) const {
    return p.group_ranks() == p.ranks || std::ranges::all_of(c.sweep.axes, [&](const auto& asked) {
             if (std::ranges::find(asked.second.values, Value(kDivisors)) ==
                 asked.second.values.end())
               return true;
             const auto value = std::get<int64_t>(find_axis(asked.first)->member.get(p));
             return value == 0 || p.group_ranks() % value == 0;
           });
  }

  void set_pattern(PointParams& p) const {
    const PatternKind kind = o.known.algorithm(p.algorithm).pattern;
    if (kind == PatternKind::kDense) {
      p.pattern = dense_pattern(p.problem.seq_len);
      return;
    }
    const DilatedConfig& d = c.dilated;
    const DilatedPattern dilated{
        .branches = resolve_branches(d, p.problem.seq_len, p.group_ranks(), p.problem.num_heads),
        .offset = c.defaults.pattern.offset,
        .mix = c.defaults.pattern.mix,
        .phase_parts = d.phase == DilationPhase::kShard ? p.group_ranks() : 1};
    p.pattern =
        kind == PatternKind::kSparse ? resolve_sparse(c.sparse, p.problem, dilated) : dilated;
    check_pattern(p.pattern, p.problem);
  }
};

// Counts of combinations that each rule removed, to explain an empty sweep.
struct Tally {
  int64_t all = 0, filtered = 0, too_many_ranks = 0, most_ranks = 0, uneven = 0, runnable = 0;
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
  if (t.too_many_ranks > 0 && !c.cluster.file.empty())
    throw UsageError(text, "\n  hint: it is made for a cluster: lnbench simulate ", c.path);
  if (t.too_many_ranks > 0)
    text += concat("\n  hint: --ranks ", t.most_ranks, ", or mpirun -np ", t.most_ranks);
  else if (t.filtered > 0)
    text += "\n  hint: `lnbench plan` without --filter lists every point";
  throw UsageError(text);
}

// Whether a point of the algorithm, of any scope and pass asked for, reads one of the values.
bool reads_some(const Config& c, const Value& algorithm, const Axis& axis,
                const std::vector<Value>& values, const KnownNames& known) {
  PointParams p = c.defaults;
  p.algorithm = to_text(algorithm);
  for (const Value& scope : c.values_of(*find_axis("scope"), 1))
    for (const Value& pass : c.values_of(*find_axis("pass"), 1)) {
      find_axis("scope")->member.set(p, scope);
      find_axis("pass")->member.set(p, pass);
      if (std::ranges::any_of(values, [&](const Value& v) { return reads(axis, v, p, known); }))
        return true;
    }
  return false;
}

}  // namespace

std::string why_uneven(const PointParams& p) {
  if (p.ranks % p.replicas != 0)
    return concat("the replicas must divide the ranks: ", p.ranks, " ranks make no ", p.replicas,
                  " equal groups");
  if (p.ranks / p.replicas % p.head_groups != 0)
    return concat("the head groups must divide the ranks of a replica: ", p.ranks / p.replicas,
                  " ranks are no multiple of ", p.head_groups);
  if (p.problem.batch % p.replicas != 0)
    return concat("the replicas must divide the batch: ", p.replicas, " groups cannot share ",
                  p.problem.batch, p.problem.batch == 1 ? " sequence" : " sequences");
  return "";
}

std::vector<std::string> replaced_choices(const Config& c, const KnownNames& known) {
  std::vector<std::string> notes;
  for (const Axis& axis : axes()) {
    const AxisValues* asked = c.sweep.find(axis.key);
    if (!asked || std::holds_alternative<int64_t>(axis.standard) ||
        std::ranges::find(asked->values, axis.standard) != asked->values.end())
      continue;
    std::vector<std::string> who, what;
    for (const Value& value : asked->values) what.push_back(to_text(value));
    for (const Value& algorithm : c.values_of(*find_axis("algorithm"), 1))
      if (!reads_some(c, algorithm, axis, asked->values, known)) who.push_back(to_text(algorithm));
    if (!who.empty())
      notes.push_back(concat("sweep.", axis.key, "=", join(what, ","), " does not apply to ",
                             join(who, ", "), ": ", to_text(axis.standard), " instead"));
  }
  return notes;
}

bool skip_too_many_ranks(Point& point, int64_t max_ranks) {
  if (point.status != PointStatus::kOk || max_ranks <= 0 || point.params.ranks <= max_ranks)
    return false;
  set_status(point, PointStatus::kSkippedUnsupported,
             concat("needs ", point.params.ranks, " ranks, there are ", max_ranks));
  return true;
}

std::vector<Point> expand(const Config& config, const ExpandOptions& options) {
  check_combinations(config, options.world_size,
                     [&](const std::string& key, const std::string& what, const std::string& hint) {
                       throw UsageError(config.path, ": ", key, ": ", what,
                                        hint.empty() ? "" : "\n  hint: ", hint);
                     });
  const Filter matches = parse_filter(options.filter, options.known);
  std::vector<Filter> excludes;
  for (const ExcludeRule& rule : config.exclude) excludes.push_back(parse_filter(rule.where));
  std::vector<Point> points;
  std::set<std::string> seen;
  Tally tally;
  tally.excluded.resize(excludes.size());
  const Product product{
      config, options, [&](const PointParams& params) {
        Point point{.id = point_id(params), .params = params, .reason = {}};
        if (!seen.insert(point.id).second) return;
        ++tally.all;
        if (!matches(point)) {
          ++tally.filtered;
          return;
        }
        const auto skip = [&point](PointStatus status, const std::string& why, int64_t& count) {
          set_status(point, status, why);
          ++count;
        };
        for (size_t i = 0; i < excludes.size() && point.status == PointStatus::kOk; ++i) {
          if (!excludes[i](point)) continue;
          skip(PointStatus::kSkippedExcluded, config.exclude[i].reason, tally.excluded[i]);
          if (config.exclude[i].omit) return;
        }
        if (skip_too_many_ranks(point, options.max_ranks)) {
          ++tally.too_many_ranks;
          tally.most_ranks = std::max<int64_t>(tally.most_ranks, params.ranks);
        }
        if (const std::string why = why_uneven(params);
            point.status == PointStatus::kOk && !why.empty())
          skip(PointStatus::kSkippedUnsupported, why, tally.uneven);
        tally.runnable += point.status == PointStatus::kOk;
        points.push_back(std::move(point));
      }};
  const Axis& scope = *find_axis("scope");
  for (const Value& value : config.values_of(scope, options.world_size)) {
    PointParams params = config.defaults;
    scope.member.set(params, value);  // before all axes, of which some are read in one scope alone
    product.walk(params);
  }
  if (tally.runnable == 0) fail_empty(config, options, tally);
  return points;
}

std::vector<DilatedBranch> resolve_branches(const DilatedConfig& dilated, int64_t seq_len,
                                            int64_t ranks, int64_t heads) {
  check(!dilated.segments.empty() && seq_len >= 1 && ranks >= 1, "branches of ",
        dilated.segments.size(), " segments, N = ", seq_len, ", P = ", ranks);
  std::vector<DilatedBranch> branches;
  const int64_t w0 = resolve_length(dilated.segments[0], seq_len, ranks);
  for (size_t i = 0; i < dilated.segments.size(); ++i) {
    const Value& segment = dilated.segments[i];
    const int64_t w = resolve_length(segment, seq_len, ranks);
    if (i > 0 && !std::holds_alternative<int64_t>(segment) && w <= w0) continue;
    const DilatedBranch branch{w, ratio_of(dilated, i, w, w0, heads)};
    if (std::ranges::find(branches, branch) == branches.end()) branches.push_back(branch);
  }
  return branches;
}

DilatedPattern resolve_sparse(const SparseConfig& sparse, const AttentionProblem& problem,
                              const DilatedPattern& dilated) {
  const int64_t w =
      std::min(sparse.segment.value_or(sqrt_power_of_two(problem.seq_len)), problem.seq_len);
  if (sparse.summary) return sparse_pattern(w, std::min(*sparse.summary, w));
  const double target = total_pairs(problem, dilated);
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

}  // namespace longnet
