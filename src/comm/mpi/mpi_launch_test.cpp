#include "comm/mpi/mpi_launch.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace longnet {
namespace {

TEST(Launcher, IsRecognisedByItsVariables) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK", "PMIX_NAMESPACE"})
    unsetenv(name);
  EXPECT_EQ(launched_transport(), nullptr);
  EXPECT_EQ(launched_rank(), 0);
  EXPECT_EQ(name_of(launched_transport()), "threads");
  setenv("PMI_SIZE", "8", 1);
  setenv("PMI_RANK", "3", 1);
  setenv("PMIX_NAMESPACE", "job-1", 1);
  ASSERT_TRUE(launched());
  EXPECT_EQ(name_of(launched_transport()), "mpi");
  EXPECT_EQ(launched()->ranks, 8);
  EXPECT_EQ(launched_rank(), 3);
  EXPECT_EQ(launched()->job, "job-1");
  EXPECT_FALSE(launched()->on_one_machine);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "8", 1);
  setenv("PMIX_NAMESPACE", "a/b", 1);  // would be a path
  EXPECT_TRUE(launched()->on_one_machine);
  EXPECT_EQ(launched()->job, "");
  for (const char* name : {"PMI_SIZE", "PMI_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    unsetenv(name);
}

}  // namespace
}  // namespace longnet
