// Inputs and outputs of a model, or a layer alone, in the memory of the executor that runs its
// program on one rank, on the host or a GPU: weights; a model's moments and tokens; a layer's input
// rows and gradients of its output.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "execute/executor.h"
#include "model/model_program.h"

namespace longnet {

struct StepResult {
  double loss = 0;           // nats a token, mean over the batch
  double gradient_norm = 0;  // before clipping; 0 unless the program is a whole step
};

inline constexpr double kFirstLearningRate = 1e-3;  // as fill_inputs sets it

class ModelMemory {
 public:
  // The executor, which must outlive it, has training_step of the shape, lowered.
  ModelMemory(const ModelShape& shape, Executor& executor);

  // Collective. Executor::open, and the inputs: initial weights by the problem's seed and tokens,
  // or rows and their gradients, by the generator, the same for any number of ranks; moments of 0;
  // the first step.
  void fill_inputs();
  // Restores the inputs that a run changes: weights; a model's moments; a layer's input rows and
  // gradients of its output. The next run does the same work as the one before.
  void restore_inputs();
  double run() { return executor_.run(); }
  // NaN of gradients, weights, moments and the loss; or the layer's output and gradients of its
  // input.
  int64_t count_nan() const;

  // Initial weights, the same for any number of ranks; moments of 0.
  void initialise(uint64_t seed);
  // `tokens`: sequences of seq_len + 1 of all replicas, the same on every rank; each token but the
  // first is the target of the one before.
  void set_tokens(std::span<const int32_t> tokens);
  // `number` counts from 1.
  void set_step(int64_t number, double learning_rate);
  StepResult result() const;  // after the last run of this program, or of another one in its memory
  // Inner product of `rows`, one for each own row, with the gradients of a layer's output that
  // fill_inputs generates. For a layer alone.
  double product_with_gradients(std::span<const float> rows) const;

  // A slot's values in fp32, on the host.
  //   kWeightSlot          as Parameters lays them out, and zeros that fill up equal parts
  //   kFirstMomentSlot, kSecondMomentSlot   of `updated`
  //   kWeightGradientSlot  of a step the sums over all ranks, with a sharded optimizer in the own
  //                        part alone; of a program that makes no step those of own rows
  //   kInputRowsSlot to kGradRowsSlot   of a layer alone: its input and output, and gradients of
  //                        its output before a backward pass, of its input after it
  std::vector<float> values(int slot) const;
  void set_values(int slot, std::span<const float> values);
  int64_t count(int slot) const;

  const Parameters& parameters() const { return parameters_; }
  // The weights that this rank updates: all, or its own part with a sharded optimizer.
  TokenInterval updated() const;

 private:
  const RankProgram& program() const { return executor_.program(); }
  const ShardedProblem& sharded() const { return executor_.sharded(); }
  bool of_layer() const { return program().scope == Scope::kLayer; }
  const RankGrid& grid() const { return sharded().layout.grid(); }
  int64_t heads() const { return sharded().problem.num_heads * grid().head_groups; }
  DType stored_in(int slot) const;
  // Calls fn(sequence of all, range, row) for the rank's rows, which begin at its row `row`.
  template <class Fn>
  void for_each_range(Fn fn) const;
  // The rank's rows of the generator, head by head, as those of Q.
  std::vector<float> generated_rows(Tensor tensor) const;
  template <class T>
  std::vector<T> read(int slot) const;
  template <class T>
  void write(int slot, const std::vector<T>& values);

  Executor& executor_;
  Parameters parameters_;
  int64_t vocabulary_;
};

// Training on one rank: steps and evaluations in the same memory.
class Trainer : public ModelMemory {
 public:
  // Collective. `step`, which must outlive this, has the program of the pass kStep; `losses` is
  // that of kForward.
  Trainer(const ModelShape& shape, Executor& step, const Schedule& losses);

  // See set_tokens and set_step.
  StepResult step(std::span<const int32_t> tokens, int64_t number, double learning_rate);
  // The loss alone.
  double evaluate(std::span<const int32_t> tokens);

 private:
  std::unique_ptr<Executor> losses_;
};

}  // namespace longnet
