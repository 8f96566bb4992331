// gpu_check: a training step of a small model, against its loss by definition, in double.
#include <algorithm>
#include <cmath>

#include "comm/cuda/device_transport.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "execute/cuda/device_executor.h"
#include "execute/model_memory.h"
#include "gpu/check.h"
#include "kernels/cuda/device_model.h"
#include "model/testing/model_definition.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet::gpu {
namespace {

struct Step {
  const AlgorithmInfo& algorithm;
  int ranks;
  ModelShape shape{.layers = 2, .ffn_width = 96, .vocabulary = 61};
  AttentionProblem problem{.seq_len = 96,
                           .num_heads = 2,
                           .num_kv_heads = 2,
                           .head_dim = 32,
                           .batch = 1,
                           .dtype = DType::kBFloat16,
                           .causal = true};
  DilatedPattern pattern = algorithm.pattern == PatternKind::kDense ? dense_pattern(problem.seq_len)
                           : algorithm.pattern == PatternKind::kSparse
                               ? sparse_pattern(24, 12)
                               : DilatedPattern{.branches = {{24, 1}, {96, 2}}};

  ShardedProblem sharded() const { return {problem, pattern, {problem.seq_len, ranks}}; }
  Schedule schedule() const {
    const ShardedProblem s = sharded();
    return lower_collectives(training_step(shape, make_schedule(algorithm, s, Pass::kForward),
                                           make_schedule(algorithm, s, Pass::kBackward), {}),
                             {});
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> all;
    for (int64_t i = 0; i <= problem.seq_len; ++i)
      all.push_back(int32_t((i * i + 7 * i) % shape.vocabulary));
    return all;
  }
};

double norm_of(std::span<const float> values) {
  double squares = 0;
  for (const float v : values) squares += double(v) * double(v);
  return std::sqrt(squares);
}

// Returns why a step that has run is wrong; empty: it is right. `w`: the weights before it.
std::string why_wrong(const Step& step, const ModelMemory& memory, std::vector<float> w,
                      double& worst) {
  constexpr double kDistance = 1e-3, kTolerance = 0.02;
  const Parameters& parameters = memory.parameters();
  const auto count = size_t(parameters.count());
  std::vector<float> g = memory.values(kWeightGradientSlot), now = memory.values(kWeightSlot);
  for (auto* values : {&w, &g, &now}) values->resize(count);
  const std::vector<double> before(w.begin(), w.end());
  const auto loss_at = [&](const std::vector<double>& weights) {
    return defined_loss(step.shape, step.problem, step.pattern, weights, step.tokens());
  };
  std::string why;
  const StepResult result = memory.result();
  const double loss = loss_at(before), norm = norm_of(g);
  if (!(std::abs(result.loss - loss) <= 3e-3 * loss))
    why += concat(" loss ", result.loss, ", by definition ", loss);
  if (!(std::abs(result.gradient_norm - norm) <= 1e-6 * norm))
    why += concat(" clips by a norm of ", result.gradient_norm, ", gradients have ", norm);
  // Along the gradient of each parameter the loss rises by its norm.
  const double usual = norm / std::sqrt(double(parameters.all().size()));
  for (const Parameter& p : parameters.all()) {
    const std::span<const float> own(&g[size_t(p.first)], size_t(p.count()));
    const double length = norm_of(own);
    const auto loss_from = [&](double distance) {
      std::vector<double> moved = before;
      for (size_t i = 0; i < own.size(); ++i)
        moved[size_t(p.first) + i] += distance * double(own[i]) / std::max(length, 1e-30);
      return loss_at(moved);
    };
    const double slope = (loss_from(kDistance) - loss_from(-kDistance)) / (2 * kDistance);
    const double error = std::abs(slope - length) / std::hypot(length, usual);
    worst = std::max(worst, error);
    if (!(error <= kTolerance))
      why += concat(" gradient of ", p.name, ": ", length, ", the loss rises by ", slope);
  }
  const StepOptions options;
  const UpdateTask adam;
  double off = 0;
  for (const Parameter& p : parameters.all())
    for (auto i = size_t(p.first); i < size_t(p.first + p.count()); ++i) {
      const double change = std::min(1.0, options.clip_norm / norm) * double(g[i]);
      const double moved =
          change / (std::abs(change) + adam.epsilon) + (p.rows > 1 ? options.decay : 0) * before[i];
      const double error = std::abs(double(now[i]) - (before[i] - kFirstLearningRate * moved));
      off = error <= off ? off : error;  // also NaN
    }
  if (!(off <= 1e-3 * kFirstLearningRate)) why += concat(" weights are off from AdamW by ", off);
  return why;
}

void run_step(const Step& step, const std::string& kernel_name, Outcome& out) {
  const Schedule schedule = step.schedule();
  const std::string name = concat("a step of a model, ", step.algorithm.name, " by ", kernel_name,
                                  " on ", step.ranks, " ranks:");
  note_work(name);
  std::string failure;
  double worst = 0;
  try {
    run_on_threads(step.ranks, [&](Communicator& comm) {
      use_device(device_of_rank(comm));
      const auto kernel = make_device_kernel(kernel_name);
      const auto transport = make_device_transport("cuda_ipc", comm);
      MemoryLedger ledger;
      DeviceExecutor executor(schedule, comm.rank(), *kernel, transport.get(), {}, ledger);
      ModelMemory memory(step.shape, executor);
      memory.fill_inputs();
      memory.set_tokens(step.tokens());
      std::vector<float> weights = memory.values(kWeightSlot);
      comm.barrier();
      memory.run();
      const double nan = comm.sum_of(double(memory.count_nan()));
      if (comm.rank() != 0) return;
      if (nan > 0) failure = concat(" ", nan, " values are NaN");
      failure += why_wrong(step, memory, std::move(weights), worst);
    });
  } catch (const std::exception& e) {
    failure = e.what();
  }
  out.worst = std::max(out.worst, worst);
  out.expect(failure.empty(), name + failure);
}

}  // namespace

void check_programs_model(Outcome& out, bool small) {
  if (left_out(why_device_model_absent())) return;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int ranks : {1, 2, 3, 4}) {
      if (small && ranks != (algorithm.one_rank_only ? 1 : 2)) continue;
      Step step{algorithm, ranks};
      if (small && algorithm.name != "dilated") step.shape.layers = 1;
      if (why_no_program(algorithm, step.sharded(), Pass::kForwardBackward).empty())
        run_step(step, "cuda", out);
    }
  const Step dilated{find_algorithm("dilated"), 2};
  if (!left_out(why_sm90a_absent())) run_step(dilated, "cuda_sm90a", out);
  if (!small && !left_out(why_device_kernel_absent("cudnn"))) run_step(dilated, "cudnn", out);
}

}  // namespace longnet::gpu
