// Times the ops of training steps for a cluster file (calibrate.h): products of matrices, row-wise
// functions, loss and update.
#include <algorithm>
#include <concepts>
#include <span>

#include "execute/model_memory.h"
#include "execute/program_executor.h"
#include "run/calibrate.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// A model whose activations take a few MB each, as those of steps of some thousand tokens do.
struct StepShape {
  int64_t heads, ffn_width, rows;  // heads of 64; rows of a rank
  int head_groups = 1;
};

std::vector<StepShape> step_shapes(bool quick) {
  if (quick) return {{1, 128, 256}, {2, 512, 256}, {2, 512, 256, 2}};
  return {{1, 256, 8192},     {2, 512, 4096}, {4, 1024, 2048},
          {4, 1024, 2048, 2}, {4, 384, 8192}, {12, 3072, 1024}};
}

// Attention within short segments: no messages, and few pairs.
Schedule step_of(const ModelShape& model, const StepShape& shape, int ranks) {
  const int group = ranks / shape.head_groups;  // ranks of a sequence
  const int64_t heads = shape.heads / shape.head_groups;
  const AttentionProblem problem{.seq_len = shape.rows * group,
                                 .num_heads = heads,
                                 .num_kv_heads = heads,
                                 .head_dim = 64,
                                 .causal = true};
  const ShardedProblem sharded{
      problem, {.branches = {{256, 1}}}, {problem.seq_len, group, LayoutKind::kContiguous}};
  const AlgorithmInfo& dilated = find_algorithm("dilated");
  return lower_collectives(training_step(model, make_schedule(dilated, sharded, Pass::kForward),
                                         make_schedule(dilated, sharded, Pass::kBackward),
                                         {.head_groups = shape.head_groups}),
                           {});
}

const ModelOp* model_op(const Action& what) {
  return std::visit(
      [](const auto& op) -> const ModelOp* {
        if constexpr (std::derived_from<std::remove_cvref_t<decltype(op)>, ModelOp>) return &op;
        return nullptr;
      },
      what);
}

// Seconds of each op of the model: of each rank the faster quartile, of these the mean over the
// ranks with the same heads, whose programs have the same ops.
std::vector<double> seconds_of_ops(ProgramExecutor& executor, Communicator& comm,
                                   const Effort& effort, int head_groups) {
  const auto& ops = executor.program().ops;
  std::vector<std::vector<double>> runs;
  quartile_seconds(comm, effort, [&] {
    executor.run();
    std::vector<double>& now = runs.emplace_back();
    for (size_t i = 0; i < ops.size(); ++i)
      if (model_op(ops[i].what) != nullptr)
        now.push_back(executor.op_times()[i].end_s - executor.op_times()[i].begin_s);
  });
  const size_t count = runs.front().size(), most = size_t(comm.max_of(double(count)));
  std::vector<double> seconds(most * size_t(head_groups));
  const auto own = std::span(seconds).subspan(most * size_t(comm.rank() % head_groups), count);
  for (size_t op = 0; op < count; ++op) {
    std::vector<double> of_op;
    for (size_t run = 1; run < runs.size(); ++run) of_op.push_back(runs[run][op]);
    std::ranges::sort(of_op);
    own[op] = of_op[of_op.size() / 4] * head_groups / comm.size();
  }
  comm.all_sum(seconds);
  return {own.begin(), own.end()};
}

}  // namespace

ModelMeasurement measure_model(Communicator& comm, int threads, const CalibrationBudget& budget) {
  ModelMeasurement result;
  const auto kernel = make_kernel("cpu");
  const auto model_kernel = make_cpu_model_kernel();
  for (const StepShape& shape : step_shapes(budget.quick)) {
    if (comm.size() % shape.head_groups != 0) continue;
    const ModelShape model{.layers = 2, .ffn_width = shape.ffn_width};
    const Schedule step = step_of(model, shape, comm.size());
    MemoryLedger ledger;
    ProgramExecutor executor(step, *kernel, threads, comm, ledger, model_kernel.get());
    ModelMemory(model, executor).fill_inputs();
    const std::vector<double> seconds =
        seconds_of_ops(executor, comm, budget.model, shape.head_groups);
    const RankProgram& program = executor.program();
    auto now = seconds.begin();
    for (const Op& op : program.ops) {
      const ModelOp* const what = model_op(op.what);
      if (what == nullptr) continue;
      const auto bytes = double(matrix_bytes(step.sharded, program, *what));
      const auto add_to = [&](Moved& total) { total.amount += bytes, total.seconds += *now; };
      visit_op(
          op.what,
          [&](const Gemm& o) {
            result.gemms.push_back({gemm_flops(o), bytes, *now});
          },
          [&](const RowWise& o) { add_to(result.row_wise[o.function]); },
          [&](const CrossEntropy&) { add_to(result.cross_entropy); },
          [&](const Update&) { add_to(result.update); }, [](const auto&) {});
      ++now;
    }
  }
  return result;
}

}  // namespace longnet
