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

void add(ClosedFormCounts& to, const ClosedFormCounts& what, int64_t times) {
  to.bytes_sent += times * what.bytes_sent;
  to.messages_sent += times * what.messages_sent;
  to.bytes_received += times * what.bytes_received;
  to.messages_received += times * what.messages_received;
}

// Values of all weights: of a layer four matrices of attention and two of the feed-forward network,
// their biases, and two norms and two sub-norms.
int64_t num_weights(const ModelShape& shape, const AttentionProblem& p) {
  const int64_t d = p.num_heads * p.head_dim, k = p.num_kv_heads * p.head_dim, f = shape.ffn_width;
  const int64_t matrices = 2 * d * d + 2 * d * k + 2 * d * f;
  const int64_t biases = 2 * d + 2 * k + f + d, norms = 2 * (3 * d + f);
  return shape.layers * (matrices + biases + norms) + shape.vocabulary * d + 2 * d;
}

// Gradients are summed and gathered, or the weights that were made of them.
void add_step(Costs& costs, const ModelShape& shape, const AttentionProblem& p,
              const RankGrid& grid, const CollectiveChoice& choice, Rank rank) {
  const int64_t n = grid.count(), unit = n * std::lcm(p.head_dim, int64_t{16});
  if (n == 1) return;
  const int64_t padded = (num_weights(shape, p) + unit - 1) / unit * unit;
  const Sizes pieces(size_t(n), padded / n * 4);
  costs.reduce_scatter(pieces, rank, choice, /*few=*/false);
  costs.all_gather(pieces, rank, 0, in_order(choice, grid.count()));
}

}  // namespace

std::optional<ClosedFormCounts> closed_form_step(const ModelShape& shape,
                                                 std::string_view algorithm,
                                                 const ShardedProblem& attention,
                                                 const StepOptions& options,
                                                 const CollectiveChoice& choice, Rank rank) {
  const RankGrid grid{.sequence = attention.layout.world_size(), .replicas = options.replicas};
  if (grid.replicas > 1 && choice.all_gather == AllGatherAlgorithm::kHierarchical)
    return std::nullopt;
  const auto of_pass = [&](Pass pass) {
    return closed_form_counts(algorithm, attention, choice, grid.position(rank), pass);
  };
  const auto forward = of_pass(Pass::kForward), backward = of_pass(Pass::kBackward);
  if (!forward || !backward) return std::nullopt;
  const bool differentiated = has_backward(options.pass);
  ClosedFormCounts counts;
  add(counts, *forward,
      shape.layers * (differentiated && shape.recompute == Recompute::kFull ? 2 : 1));
  if (differentiated) add(counts, *backward, shape.layers);
  if (options.scope != Scope::kModel) return counts;
  Costs costs;
  if (options.pass == Pass::kStep) add_step(costs, shape, attention.problem, grid, choice, rank);
  costs.all_gather(Sizes(size_t(grid.count()), 16), rank, 0,  // losses and squared norms
                   in_order(choice, grid.count()));
  add(counts, costs.counts, 1);
  return counts;
}

}  // namespace longnet
