// Measures the times of one rank's kernels for a cluster file.
//
//   measure_attends: blocks of queries against lists of keys, cut as the executor cuts them:
//     1 x 2048 x 2048, 1 x 2048 x 512, 4 x 128 x 1024, 16 x 64 x 64 ...; causal: whole sequences
//   Rows lie four heads apart, as in a tensor [token][4 heads][head_dim].
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "run/calibrate_time.h"
#include "simulate/calibration.h"

namespace longnet {

struct KernelBudget {
  Effort effort{};
  std::vector<int64_t> head_dims{32, 64, 128};
  bool quick = false;  // fewer and smaller shapes
};

struct AttendMeasurement {
  int64_t head_dim = 64;
  DType dtype = DType::kFloat32;
  bool causal = false;
  std::vector<AttendTime> times{};
  // Rows of the table: measurements with as many queries as keys.
  std::vector<KernelRow> rows{};
};

struct KernelMeasurement {
  std::vector<AttendMeasurement> attends{};
  double pack_bytes_per_s = 0, merge_bytes_per_s = 0;
  double launch_s = 0;  // of one op of the executor, beyond what its kernel takes
};

// Collective over the ranks of `comm`, all at work at the same time. `threads` of each rank.
KernelMeasurement measure_kernels(Communicator& comm, int threads, const KernelBudget& budget);

// Seconds of one attend of 2048 x 2048 rows, head_dim 64, fp32: to compare a rank that is alone
// with ranks that are all at work.
double measure_one_attend(Communicator& comm, int threads, const KernelBudget& budget);

inline constexpr int64_t kQueryBlockRows = 2048;  // most queries that the executor gives a task

}  // namespace longnet
