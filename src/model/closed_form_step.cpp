#include "model/closed_form_step.h"

#include <numeric>

#include "schedule/message_costs.h"

namespace longnet {
namespace {

// The algorithm of a gather of values, whose pieces keep their order: a ring where the one asked
// for moves them.
CollectiveChoice in_order(CollectiveChoice choice, int ranks) {
  using enum AllGatherAlgorithm;
  const bool doubles = choice.all_gather == kRecursiveDoubling && (ranks & (ranks - 1)) == 0;
  if (choice.all_gather != kNative && !doubles) choice.all_gather = kRing;
  return choice;
}

void add(RankCounts& to, const RankCounts& what, int64_t times) {
  to.bytes_sent += times * what.bytes_sent;
  to.messages_sent += times * what.messages_sent;
  to.bytes_received += times * what.bytes_received;
  to.messages_received += times * what.messages_received;
}

// Values of all weights: of a layer four matrices of attention and two of the feed-forward network,
// their biases, and two norms and two sub-norms. `a` and `f`: columns that are here.
int64_t num_weights(const ModelShape& shape, const AttentionProblem& p, int head_groups) {
  const int64_t a = p.num_heads * p.head_dim, k = p.num_kv_heads * p.head_dim;
  const int64_t d = a * head_groups, f = shape.ffn_width / head_groups;
  const int64_t matrices = 2 * d * a + 2 * d * k + 2 * d * f;
  const int64_t biases = a + 2 * k + f + 2 * d, norms = 2 * (2 * d + a + f);
  return shape.layers * (matrices + biases + norms) + shape.vocabulary * d + 2 * d;
}

// Gradients are summed and gathered, or the weights that were made of them.
void add_step(Costs& costs, const ModelShape& shape, const AttentionProblem& p,
              const RankGrid& grid, const CollectiveChoice& choice, Rank rank) {
  const int64_t n = grid.count() / grid.head_groups, unit = n * std::lcm(p.head_dim, int64_t{16});
  if (n == 1) return;
  const int64_t padded = ceil_div(num_weights(shape, p, grid.head_groups), unit) * unit;
  const Sizes pieces(size_t(n), padded / n * 4);
  const int me = rank / grid.head_groups;
  costs.reduce_scatter(pieces, me, choice, /*few=*/false);
  costs.all_gather(pieces, me, 0, in_order(choice, int(n)));
}

// Between ranks with the same tokens, in each layer: two sums of rows forward and two backward, and
// one once more where that is computed again; two floats a row in each of two norms, once forward,
// twice backward, and once more where these are computed again.
void add_head_groups(Costs& costs, const ModelShape& shape, const ShardedProblem& s,
                     const RankGrid& grid, const StepOptions& options,
                     const CollectiveChoice& choice, Rank rank) {
  const int t = grid.head_groups, me = rank % t;
  if (t == 1) return;
  const int64_t rows = s.layout.shard(grid.position(rank)).tokens() * s.problem.batch;
  const bool differentiated = has_backward(options.pass);
  const bool again = differentiated && shape.recompute != Recompute::kNone;
  const Sizes summed(size_t(t), rows * s.problem.num_heads * s.problem.head_dim * 4);
  const Sizes moments(size_t(t), rows * 8);
  for (int64_t i = 0; i < shape.layers * (2 + 2 * differentiated + again); ++i) {
    costs.reduce_scatter(summed, me, choice, /*few=*/false);
    costs.all_gather(summed, me, rank - me, in_order(choice, t));
  }
  for (int64_t i = 0; i < shape.layers * (2 + 4 * differentiated + 2 * again); ++i)
    costs.all_gather(moments, me, rank - me, in_order(choice, t));
}

}  // namespace

std::optional<RankCounts> closed_form_step(const ModelShape& shape, std::string_view algorithm,
                                           const ShardedProblem& attention,
                                           const StepOptions& options,
                                           const CollectiveChoice& choice, Rank rank) {
  const RankGrid grid{.sequence = attention.layout.world_size(),
                      .replicas = options.replicas,
                      .head_groups = options.head_groups};
  if (grid.replicas * grid.head_groups > 1 &&
      choice.all_gather == AllGatherAlgorithm::kHierarchical)
    return std::nullopt;
  const auto of_pass = [&](Pass pass) {
    return closed_form_counts(algorithm, attention, choice, grid.position(rank), pass);
  };
  const auto forward = of_pass(Pass::kForward), backward = of_pass(Pass::kBackward);
  if (!forward || !backward) return std::nullopt;
  const bool differentiated = has_backward(options.pass);
  RankCounts counts;
  add(counts, *forward,
      shape.layers * (differentiated && shape.recompute == Recompute::kFull ? 2 : 1));
  if (differentiated) add(counts, *backward, shape.layers);
  Costs costs;
  add_head_groups(costs, shape, attention, grid, options, choice, rank);
  if (options.scope != Scope::kModel) {
    add(counts, costs.counts, 1);
    return counts;
  }
  if (options.pass == Pass::kStep) add_step(costs, shape, attention.problem, grid, choice, rank);
  costs.all_gather(Sizes(size_t(grid.count()), 16), rank, 0,  // losses and squared norms
                   in_order(choice, grid.count()));
  add(counts, costs.counts, 1);
  return counts;
}

}  // namespace longnet
