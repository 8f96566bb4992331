// The program of a model, or of a layer alone, on one rank of the host, with its inputs: weights,
// and moments and tokens; or rows and gradients of the layer's output.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "execute/definition.h"
#include "execute/program_executor.h"
#include "kernels/model_kernel.h"
#include "model/model_program.h"

namespace longnet {

struct StepResult {
  double loss = 0;           // nats a token, mean over the batch
  double gradient_norm = 0;  // before clipping; 0 unless the program is a whole step
};

inline constexpr double kFirstLearningRate = 1e-3;  // as fill_inputs sets it

class ModelExecutor : public ProgramExecutor {
 public:
  // The kernels, communicator and ledger must outlive it. `schedule`: training_step of the shape,
  // lowered.
  ModelExecutor(const ModelShape& shape, const Schedule& schedule, const AttentionKernel& kernel,
                const ModelKernel& model_kernel, int threads, Communicator& comm,
                MemoryLedger& ledger);

  // Initial weights by the problem's seed and tokens, or rows and their gradients, by the
  // generator, the same for any number of ranks; moments of 0; the first step.
  void fill_inputs() override;
  // What a run changes, weights, moments and gradients of rows, and rows: two runs after this do
  // the same work.
  void restore_inputs() override;
  void poison(const RowWorker& worker) override;
  // Of gradients, weights, moments and the loss; or the layer's output and gradients of its input.
  int64_t count_nan() const override;

  // Initial weights, the same for any number of ranks; moments of 0.
  void initialise(uint64_t seed);
  // `tokens`: sequences of seq_len + 1 of all replicas, the same on every rank; each token but the
  // first is the target of the one before.
  void set_tokens(std::span<const int32_t> tokens);
  // `number` counts from 1.
  void set_step(int64_t number, double learning_rate);
  StepResult result() const;  // of the last run of this program, or of another one in its memory
  // Of a layer alone: the sum over own rows of their products with the gradients of the output that
  // are given.
  double product_with_gradients(std::span<const float> rows) const;
  // Own rows in the slots of a layer alone, kInputRowsSlot to kGradRowsSlot: its input and output,
  // and gradients of its output before a backward pass, of its input after it.
  std::vector<float> rows(int slot) const;
  void set_rows(int slot, std::span<const float> rows);

  // Row of Q, K or V in the slots of layer 0, as the attention that ran last there has taken it,
  // of a sequence of its batch; empty where another rank has the token.
  void read_attention(Tensor tensor, const QuerySample& at, std::vector<float>& row) const;

  const Parameters& parameters() const { return parameters_; }
  // As Parameters lays them out, and zeros that fill up equal parts.
  std::span<float> weights() { return values(kWeightSlot); }
  // Those that this rank updates: all, with a sharded optimizer its own part; and their moments.
  TokenInterval updated() const;
  std::span<float> first_moments() { return values(kFirstMomentSlot); }
  std::span<float> second_moments() { return values(kSecondMomentSlot); }
  // Of a step the sums over all ranks, with a sharded optimizer in the own part alone; of a program
  // that makes no step those of own rows.
  std::span<float> weight_gradients() const { return values(kWeightGradientSlot); }

 private:
  bool of_layer() const { return program().scope == Scope::kLayer; }
  const RankGrid& grid() const { return sharded().layout.grid(); }
  int64_t heads() const { return sharded().problem.num_heads * grid().head_groups; }
  // Calls fn(sequence of all, range, row) for the rank's rows, which begin at its row `row`.
  template <class Fn>
  void for_each_range(Fn fn) const;
  void make_rows(int slot, Tensor tensor);
  bool in_bf16(int slot) const {
    return holds_stored(program().slots[size_t(slot)].kind) &&
           sharded().problem.dtype == DType::kBFloat16;
  }

  template <typename T = float>
  std::span<T> values(int slot) const {
    const std::span<std::byte> bytes = bound().memory(slot);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  Parameters parameters_;
  int64_t vocabulary_;
};

}  // namespace longnet
