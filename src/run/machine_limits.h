// Limits of the machine that predictions use: memory, speed and time.
#pragma once
#include "io/config.h"

namespace longnet {

struct MachineLimits {
  int64_t memory_bytes = 0;   // of the machine, for all its ranks
  double flops_per_rank = 0;  // attainable by one rank
  double point_timeout_s = 0;
  int cores =
      0;  // hardware threads for the ranks of this machine together; 0: as many as they want
  VirtualConfig virtual_ranks{};
  int replayed_ranks = 0;  // 0: all run
  // GPUs of this machine; 0: not known.
  int devices = 0;
  int64_t device_memory_bytes = 0;  // of one
  bool device_limit_given = false;  // by memory.limit_bytes: buffers beyond it are refused
  double device_flops = 0;          // attainable by one
  bool to_run = false;              // points that need a GPU are refused where there is none
};

MachineLimits machine_limits(const Config& config, double peak_flops_per_rank);
// Ranks that a run without mpirun starts as threads: one per usable core, or per GPU where every
// kernel of the configuration runs on GPUs.
int default_world_size(const Config& config);

// Share of the FMA peak that a forward pass can be expected to reach; used for estimates only.
inline constexpr double kExpectedShareOfPeak = 0.7;
// The same of a GPU's tensor cores: attention spends as long on exponentials as on products.
inline constexpr double kExpectedShareOfDevicePeak = 0.3;

}  // namespace longnet
