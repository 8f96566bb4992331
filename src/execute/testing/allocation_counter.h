// Counts this process's calls of operator new (a timed region must make none) and its live bytes.
// For programs that link longnet_execute_testing: it replaces the global operator new.
#pragma once
#include <cstdint>

namespace longnet {
int64_t allocations_so_far();
// Bytes of blocks that are allocated now.
int64_t allocated_bytes();
// operator new throws std::bad_alloc where more than `bytes` would be allocated; 0: no limit.
void limit_allocated_bytes(int64_t bytes);

// Collective. Calls of operator new, by any rank of this process, in the fourth run.
template <class Executor, class Communicator>
int64_t allocations_once_warm(Executor& executor, Communicator& comm) {
  executor.fill_inputs();
  for (int i = 0; i < 3; ++i) executor.run();
  comm.barrier();
  const int64_t before = allocations_so_far();
  comm.barrier();
  executor.run();
  comm.barrier();
  const int64_t during = allocations_so_far() - before;
  comm.barrier();
  return during;
}
}  // namespace longnet
