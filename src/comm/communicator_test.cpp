// The contract of every transport, on ranks as threads; bench/mpi_checks.cpp runs the same under
// mpirun.
#include <gtest/gtest.h>

#include "comm/testing/communicator_checks.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

TEST(ThreadWorld, KeepsTheContractOfATransport) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    run_on_threads(ranks, [](Communicator& comm) { check_communicator(comm); });
}

TEST(ThreadWorld, MessageOfAnotherSizeIsAnError) {
  EXPECT_THROW(
      run_on_threads(2,
                     [](Communicator& comm) {
                       std::vector<std::byte> data(comm.rank() == 0 ? 8 : 16);
                       comm.wait(comm.rank() == 0 ? comm.isend(1, data) : comm.irecv(0, data));
                     }),
      Error);
}

}  // namespace
}  // namespace longnet
