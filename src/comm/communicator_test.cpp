// The contract of every transport, on ranks as threads; bench/mpi_checks.cpp runs the same under mpirun.
#include <gtest/gtest.h>

#include <atomic>

#include "comm/mpi/mpi_world.h"
#include "comm/testing/communicator_checks.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

TEST(ThreadWorld, KeepsTheContractOfATransport) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    run_on_threads(ranks, [](Communicator& comm) { check_communicator(comm); });
}

TEST(ThreadWorld, AFailingRankEndsTheOthers) {
  try {
    run_on_threads(4, [](Communicator& comm) {
      const auto part = comm.first_ranks(3);
      if (comm.rank() == 2) throw Error("broke");
      if (part) part->barrier();
      comm.barrier();
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 2: broke");
  }
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

TEST(Launcher, IsRecognisedByItsVariables) {
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("PMI_SIZE");
  EXPECT_FALSE(launched_world_size().has_value());
  setenv("PMI_SIZE", "8", 1);
  EXPECT_EQ(launched_world_size(), 8);
  unsetenv("PMI_SIZE");
}

}  // namespace
}  // namespace longnet
