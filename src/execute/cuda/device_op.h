// One op of a bound program, prepared for a GPU: its lists of tasks are in device memory.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "execute/bound_program.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/rows.h"

namespace longnet {

struct DeviceOp {
  std::unique_ptr<PreparedAttend> attend;
  std::vector<PreparedRows> rows;       // packs, conversions, merges
  PreparedRows fill;                    // virtual ranks: what others would send
  std::span<const std::byte> own_from;  // virtual ranks: a rank's part for itself of an all-to-all
  std::span<std::byte> own_into;
  std::vector<std::span<float>> zeros, absent;  // O and LSE that a reset fills

  bool skipped = false;             // runs as part of a later op, or not at all
  OpId also_after = -1;             // the op that runs as part of this one
  int round = -1;                   // of a communication
  std::optional<Event> done;        // of computing ops that communications wait for
  std::optional<Event> begin, end;  // timing; of a computing op from when its messages are there
  std::optional<Event> asked;       // timing; before it waits for messages

  void enqueue(const Stream& stream) const;
};

// `merge`: the attend merges into its results instead of overwriting them. `concurrent`: see
// DeviceAttendOptions.
struct DeviceAttendNeeds {
  bool merge = false, concurrent = false;
};
// Prepares the tasks of `grids`, joined where they can be, as one attend.
std::unique_ptr<PreparedAttend> prepare_attend(const BoundProgram& bound,
                                               std::span<const AttendGrid> grids,
                                               const DeviceKernel& kernel,
                                               const DeviceAttendNeeds& needs,
                                               MemoryLedger& ledger);
// Packs, conversions, merges and resets of an op that computes.
void prepare_rows(const BoundProgram& bound, OpId id, DeviceOp& op, MemoryLedger& ledger);
// Prepares the rows that a communication would receive, to be generated in place (virtual ranks).
// Returns their bytes.
int64_t prepare_messages(const BoundProgram& bound, OpId id, DeviceOp& op, MemoryLedger& ledger);

}  // namespace longnet
