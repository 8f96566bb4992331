// The checks of a transport's contract find transports that break it.
#include "comm/testing/communicator_checks.h"

#include <gmock/gmock.h>

#include "comm/testing/damaged_communicator.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

// The error of two ranks, each on the network that `make` makes of its own.
template <class Make>
std::string broken_contract(Make make) {
  try {
    run_on_threads(2, [&](Communicator& comm) {
      auto network = make(comm);
      check_communicator(network);
    });
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CommunicatorChecks, FindABitThatArrivesChanged) {
  EXPECT_THAT(broken_contract([](Communicator& comm) { return DamagedCommunicator(comm, 7); }),
              testing::HasSubstr("message 7 arrived changed"));
}

TEST(CommunicatorChecks, FindMessagesThatNobodyCounts) {  // as late ones count none of a gather
  EXPECT_THAT(broken_contract([](Communicator& comm) { return LateCommunicator(comm, 1 << 20); }),
              testing::HasSubstr("gather counts 0 bytes"));
}

}  // namespace
}  // namespace longnet
