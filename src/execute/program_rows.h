// Rows of a bound program outside its ops: inputs, rows that other ranks would send, and the
// output. A RowWorker reads and writes them in place, on host or GPU.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "execute/bound_program.h"
#include "kernels/row_worker.h"

namespace longnet {

using MemoryRows = std::vector<std::span<const float>>;  // rows of a program's memory
// Returns a copy of the rows on the host, one after the other.
using ReadRows = std::function<std::vector<float>(const MemoryRows& rows)>;
std::vector<float> copy_host_rows(const MemoryRows& rows);  // rows in the host's memory

RowFormat row_format(const AttentionProblem& problem);
// True when the token is in the rank's shard and the program has its sequence.
bool has_row(const BoundProgram& bound, int64_t batch, int64_t token);
// The inputs that the generator makes: Q, K and V, and dO of a backward pass.
std::vector<TensorKind> made_inputs(const BoundProgram& bound);

// Fills Q, K and V of the shard, and dO of a backward pass, from the generator; its other input,
// the output of the forward pass, comes from there. Returns their digest (kernels/row_worker.h).
// `poisoned` becomes NaN.
uint64_t fill_inputs(const BoundProgram& bound, const RowWorker& worker,
                     std::span<const std::span<std::byte>> poisoned = {});
// Every slot but the inputs.
std::vector<std::span<std::byte>> written_memory(const BoundProgram& bound);
// Fills it with NaN: what a run has not written cannot pass for its output.
void poison(const BoundProgram& bound, const RowWorker& worker);
// The digest of these as they are in memory.
uint64_t digest_inputs(const BoundProgram& bound, const RowWorker& worker);
// The rows of the pieces of `view`, of Q, K, V, dO or gradients. A K/V row that several query heads
// share comes once.
//   P = 2, N = 8, one head, rank 1's gathered slot of branch {8, 2}: its first piece (of rank 0)
//   holds the keys 0 and 2, which gives {key, head 0, tokens 0 2} and the same of V behind them.
std::vector<FillRows> view_rows(const BoundProgram& bound, const SlotView& view);
// The rows of Q (kind kQuery), of K and V (kKeyValue) or of dO (kGradOut) of the shard; of dQ
// (kGradQuery) named as those of Q, and of dK and dV (kGradKeyValue) as those of K and V.
std::vector<FillRows> shard_rows(const BoundProgram& bound, TensorKind kind);

// Rows that a communication receives, without the other ranks: rows of Q, K or V that the generator
// can make again, and the part of an all-to-all that a rank sends to itself.
struct ReceivedRows {
  std::vector<FillRows> rows;
  int64_t bytes = 0;  // size of the rows, which messages would have carried
  std::span<const std::byte> own_from;
  std::span<std::byte> own_into;
};
ReceivedRows received_rows(const BoundProgram& bound, size_t op);

// Summaries of the output, by query head.
std::vector<OutputSummary> summarize_output(const BoundProgram& bound, const RowWorker& worker);
// One row of the output, for a sequence of the program's batch and a token of its shard:
// head_dim values, of 16 bits where the problem stores O in them (output_row_floats).
std::span<const float> output_row(const BoundProgram& bound, int64_t batch, int64_t head,
                                  int64_t token);
// NaN unless RankProgram::output_is_partial.
const float* output_lse(const BoundProgram& bound, int64_t batch, int64_t head, int64_t token);
// All values that a run makes: O first, LSE where the output has one, gradients.
std::vector<std::span<const float>> made_values(const BoundProgram& bound);
// One row of dQ or, by K/V head, of dK (tensor kKey) or dV (kValue).
std::span<const float> gradient_row(const BoundProgram& bound, Tensor tensor, int64_t batch,
                                    int64_t head, int64_t token);
// Digests of all rows of dQ, dK and dV.
std::array<uint64_t, 3> digest_gradients(const BoundProgram& bound, const RowWorker& worker);

}  // namespace longnet
