// A GPU's clocks, power and temperature while something is measured on it.
#pragma once
#include "comm/communicator.h"
#include "core/cuda/nvml.h"
#include "io/record.h"

namespace longnet {

// Looks at the calling thread's device right after each sample, while it is still warm: reasons to
// slow down are known for that moment only.
class ClockWatch {
 public:
  void look();
  // Metrics of the lowest clock and the highest of the others over the ranks of `comm`, which may
  // be null; none where some rank's NVML does not tell.
  void write(PointRecord& record, Communicator* comm) const;

 private:
  DeviceClocks worst_{};
  bool known_ = false, throttled_ = false;
  // By the driver's own count, which misses nothing between two looks: before the first of them,
  // and since.
  double slowed_before_s_ = 0, slowed_s_ = 0;
};

}  // namespace longnet
