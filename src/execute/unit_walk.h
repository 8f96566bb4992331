// One device in the place of all ranks: what a walk does with one unit, a rank's shard of some
// sequences, and what it leaves. On the CPU: virtual_walk.h; on a GPU: cuda/device_walk.h.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "execute/sample_check.h"
#include "execute/share_choice.h"
#include "kernels/row_worker.h"

namespace longnet {

struct WalkUnit {
  Rank rank = 0;
  int64_t first_batch = 0, batches = 1;  // sequences of the problem's batch
  bool operator==(const WalkUnit&) const = default;
};

// Seconds of one unit. `generate` makes the shard's own inputs with their digest, `receive` what
// other ranks would send.
struct WalkTimes {
  double bind_s = 0, poison_s = 0, generate_s = 0, receive_s = 0;
  double attend_s = 0, pack_s = 0, merge_s = 0;  // the forward pass; pack: also resets
  double summarize_s = 0, check_s = 0, wall_s = 0;
  double forward_s() const { return attend_s + pack_s + merge_s; }
};

struct ShardOutcome {
  WalkUnit unit;
  WalkShare share;  // below all: no output, hence no summary, digest or sample
  WalkTimes times;
  int64_t received_bytes = 0;  // what the program's messages would have brought
  int64_t unit_bytes = 0;      // of the unit's slots and the kernel's workspace
  uint64_t input_digest = 0;   // of the shard's Q, K and V
  std::vector<OutputSummary> heads;
  SampleErrors errors;
};

class UnitWalk {
 public:
  // The schedule for a batch of that many sequences.
  using MakeSchedule = std::function<Schedule(int64_t batches)>;
  virtual ~UnitWalk() = default;
  // Throws std::bad_alloc when the device has too little memory.
  virtual ShardOutcome run(const WalkUnit& unit, const std::vector<QuerySample>& samples) = 0;
  // Runs about this share of the unit's pairs (share_choice.h). Only what these read is received.
  virtual ShardOutcome run_share(const WalkUnit& unit, double share) = 0;
};

}  // namespace longnet
