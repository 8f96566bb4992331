#include "run/watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/testing/test_support.h"

namespace longnet {
namespace {

TEST(WatchdogDeathTest, EndsWhatWaitsTooLong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Watchdog watchdog(7);
        watchdog.expect("a point", 0.01);
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::ExitedWithCode(3),
      "rank 7 waited too long in 'a point'; a rank did not arrive. Giving up, exit 3");
}

void wait_beside_silent_ranks(bool linked = false) {
  const TemporaryFolder folder;
  // Each rank's last beat in milliseconds, its steps, and its last progress: rank 3 is ahead.
  const int64_t beats[] = {0, 0, 0, 1000, 1, 0, int64_t{1} << 60, 0, 0, int64_t{1} << 60, 9, 0};
  std::ofstream(folder.path("ranks"), std::ios::binary)
      .write(reinterpret_cast<const char*>(beats), sizeof beats);
  if (linked) std::filesystem::create_hard_link(folder.path("ranks"), folder.path("other"));
  Watchdog watchdog(0);
  watchdog.join(folder.path("ranks"));
  watchdog.expect("a point", 1e-3);
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST(WatchdogDeathTest, NamesTheRankThatIsMissing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_beside_silent_ranks(), testing::ExitedWithCode(3),
              "in 'a point'; rank 1 gave no sign of life for [0-9]+ s; rank 2 has not come so far; "
              "a rank did not arrive. Giving up, exit 3");
}

TEST(WatchdogDeathTest, AFileWithAnotherNameIsNotItsOwn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_beside_silent_ranks(/*linked=*/true), testing::ExitedWithCode(3),
              "in 'a point'; a rank did not arrive. Giving up, exit 3");
}

// Waits as rank 0 of two ranks, whose launcher gives them this folder.
void wait_for_the_start(const std::string& folder) {
  ::setenv("TMPDIR", folder.c_str(), 1);
  ::setenv("PMIX_NAMESPACE", "job-of-a-test", 1);
  for (const char* ranks : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    ::setenv(ranks, "2", 1);
  Watchdog watchdog(0);
  watchdog.expect_start(1e-3);
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

// The job had the same name and three ranks, which came far.
void wait_beside_a_killed_job() {
  const TemporaryFolder folder;
  const int64_t beats[] = {1000, 9, 1000, 1000, 9, 1000, 1000, 9, 1000};
  std::ofstream(folder.path(concat("longnet-", ::getuid(), "-job-of-a-test.alive")),
                std::ios::binary)
      .write(reinterpret_cast<const char*>(beats), sizeof beats);
  wait_for_the_start(folder.path(""));
}

TEST(WatchdogDeathTest, NamesTheRankThatHasNotStarted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      wait_beside_a_killed_job(), testing::ExitedWithCode(3),
      "in 'the start'; rank 1 has not come so far; a rank did not arrive. Giving up, exit 3");
}

TEST(WatchdogDeathTest, WithoutATemporaryFolderItWatchesTheStartAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_for_the_start("/nowhere"), testing::ExitedWithCode(3),
              "in 'the start'; a rank did not arrive. Giving up, exit 3");
}

TEST(Watchdog, AProcessThatWasStoppedAccusesNobody) {
  const pid_t child = fork();
  if (child == 0) {
    Watchdog watchdog(1);
    watchdog.expect("a point", 2);
    raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Watchdog, ProgressAndLongLimitsKeepItQuiet) {
  Watchdog watchdog(0);
  watchdog.expect("years", 1e300);
  watchdog.expect("a point", 0.3);
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    watchdog.progress();
  }
}

TEST(Watchdog, ARankWithoutWorkWaitsForTheProgressOfAnother) {
  const TemporaryFolder folder;
  Watchdog waits(0), works(1);
  for (Watchdog* rank : {&waits, &works}) rank->join(folder.path("ranks"));
  works.expect("a point of one rank", 60);
  waits.expect("a point of one rank", 1.2);
  for (int i = 0; i < 125; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    works.progress();
  }
}

TEST(Watchdog, RestsWhenAllIsWell) {
  Watchdog watchdog(0);
  watchdog.expect("a point", 0.05);
  watchdog.rest();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

}  // namespace
}  // namespace longnet
