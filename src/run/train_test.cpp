#include "run/train.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "core/check.h"
#include "run/train_text.h"

namespace longnet {
namespace {

TEST(Train, LearningRateRisesInALineAndFallsAlongACosine) {
  const TrainConfig t{
      .steps = 110, .warmup_steps = 10, .learning_rate = 0.5, .final_learning_rate = 0.2};
  EXPECT_DOUBLE_EQ(learning_rate_of(t, 1), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate_of(t, 10), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_of(t, 60), 0.3);
  EXPECT_DOUBLE_EQ(learning_rate_of(t, 110), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_of({.steps = 5, .warmup_steps = 0, .learning_rate = 1}, 5), 0.1);
}

std::vector<uint8_t> counting(size_t bytes) {
  std::vector<uint8_t> text(bytes);
  std::iota(text.begin(), text.end(), uint8_t{0});
  return text;
}

TEST(Train, BatchesFollowFromTheStepAndLeaveOutWhatIsHeldOut) {
  const TrainText text({counting(200), 150}, 10);  // 150 bytes to train on
  EXPECT_EQ(text.held_out(), 50);
  std::vector<int32_t> batch, again;
  std::set<int32_t> seen;
  for (int64_t step = 1; step <= 300; ++step) {
    text.batch_of_step(7, step, 2, batch);
    text.batch_of_step(7, step, 2, again);
    ASSERT_EQ(batch, again);
    ASSERT_EQ(batch.size(), 22u);
    for (const size_t begin : {size_t{0}, size_t{11}})
      for (size_t i = 0; i < 11; ++i) ASSERT_EQ(batch[begin + i], batch[begin] + int32_t(i));
    seen.insert(batch.begin(), batch.end());
  }
  EXPECT_EQ(seen.size(), 150u);  // every byte of the first part, none of the last
  EXPECT_EQ(*seen.rbegin(), 149);
  std::vector<int32_t> other;
  text.batch_of_step(8, 300, 2, other);
  EXPECT_NE(other, batch);
}

TEST(Train, HeldOutBatchesSpreadOverTheHeldOutText) {
  const TrainText text({counting(200), 150}, 10);
  std::vector<int32_t> batch;
  text.held_out_batch(0, 2, 2, batch);
  EXPECT_EQ(batch[0], 150);
  EXPECT_EQ(batch[11], 160);
  text.held_out_batch(1, 2, 2, batch);
  EXPECT_EQ(batch[0], 170);
  EXPECT_EQ(batch[11], 180);
  text.held_out_batch(7, 8, 1, batch);  // eight do not fit side by side
  EXPECT_EQ(batch[10], 195);
  EXPECT_THROW(TrainText({counting(40), 20}, 20), UsageError);
  EXPECT_THROW(TrainText({counting(40), 25}, 20), UsageError);
}

TEST(Train, WholeFilesAreHeldOutWhereThereAreEnough) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "longnet_train_text";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "below");
  for (const char letter : {'a', 'b', 'c', 'd'})
    std::ofstream(folder / "below" / concat(letter, ".md")) << std::string(10, letter);
  std::ofstream(folder / "image.png") << "no text";
  const auto text_of = [&](const std::string& path, double held_out) {
    const TextBytes text = read_text({path}, held_out);
    return concat(std::string(text.bytes.begin(), text.bytes.end()), " ", text.trained);
  };
  const std::string a(10, 'a'), b(10, 'b'), c(10, 'c'), d(10, 'd');
  EXPECT_EQ(text_of(folder.string(), 0), a + b + c + d + " 40");
  EXPECT_EQ(text_of(folder.string(), 0.25), a + b + d + c + " 30");
  EXPECT_EQ(text_of(folder.string(), 0.1), a + b + c + d + " 36");  // too few files
  EXPECT_EQ(text_of((folder / "below" / "a.md").string(), 0.5), a + " 5");
  EXPECT_THROW(read_text({"/nowhere"}, 0), UsageError);
  std::filesystem::create_directories(folder / "empty");
  EXPECT_THROW(read_text({(folder / "empty").string()}, 0), UsageError);
}

}  // namespace
}  // namespace longnet
