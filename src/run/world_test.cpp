#include "run/world.h"

#include <gmock/gmock.h>

#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

class JoinedRanks final : public RankProcesses {
 public:
  explicit JoinedRanks(Communicator& comm) : comm_(comm) {}
  Communicator& communicator() override { return comm_; }
  std::string library_version() const override { return "3.1"; }

 private:
  Communicator& comm_;
};

// A transport that no product file names; its processes are threads.
TEST(World, TakesAnyTransport) {
  run_on_threads(3, [](Communicator& comm) {
    const HostTransport other{.name = "other",
                              .launch =
                                  [&] {
                                    return Launch{comm.size(), comm.rank()};
                                  },
                              .join = [&] { return std::make_unique<JoinedRanks>(comm); }};
    World world(/*thread_ranks=*/8, &other);
    EXPECT_EQ(world.rank(), comm.rank());
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.ranks_on_this_machine(), 3);
    EXPECT_FALSE(world.is_one_process());
    EXPECT_EQ(world.transport(), "other");
    EXPECT_EQ(world.library_version(), "3.1");
    EXPECT_THAT(world.all_texts(std::to_string(comm.rank())), testing::ElementsAre("0", "1", "2"));
    EXPECT_EQ(world.smallest(5 - comm.rank()), 3);
    EXPECT_TRUE(world.agree(comm.rank() == 0));
    EXPECT_FALSE(world.agree(comm.rank() != 0));
    // Rank 2 has no part, and waits.
    const int returned =
        world.run(2, [](Communicator& part) { return part.size() + 10 * part.rank(); });
    EXPECT_EQ(returned, comm.rank() < 2 ? 2 + 10 * comm.rank() : 0);
  });
}

TEST(World, IsOfThreadsWithoutALaunch) {
  World world(3, nullptr);
  EXPECT_EQ(world.size(), 3);
  EXPECT_TRUE(world.is_one_process());
  EXPECT_EQ(world.transport(), "threads");
  EXPECT_EQ(world.library_version(), "");
  EXPECT_EQ(world.smallest(5), 5);
  EXPECT_EQ(world.all_texts("a").size(), 3u);
  EXPECT_EQ(world.run([](Communicator& part) { return part.size(); }), 3);
  EXPECT_THROW(world.run(4, [](Communicator&) {}), Error);
}

}  // namespace
}  // namespace longnet
