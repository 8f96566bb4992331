// The text that a model trains on: bytes, of which some are held out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace longnet {

struct TextBytes {
  std::vector<uint8_t> bytes;
  int64_t trained = 0;  // the first of them; the others are held out
};

class TrainText {
 public:
  // Throws UsageError where either part is shorter than a sequence of seq_len + 1.
  TrainText(TextBytes text, int64_t seq_len);

  // `batch` sequences of seq_len + 1 bytes from places that follow from seed and step alone.
  void batch_of_step(uint64_t seed, int64_t step, int64_t batch, std::vector<int32_t>& out) const;
  // The i-th of `batches`, whose sequences begin at even distances over the whole held-out part;
  // they overlap where it is shorter than all of them.
  void held_out_batch(int64_t i, int64_t batches, int64_t batch, std::vector<int32_t>& out) const;
  int64_t trained() const { return trained_; }  // bytes
  int64_t held_out() const { return int64_t(bytes_.size()) - trained_; }

 private:
  void append(int64_t begin, std::vector<int32_t>& out) const;
  std::vector<uint8_t> bytes_;
  int64_t trained_, seq_len_;
};

// The files, and in folders all files below whose name ends as text of a program or a page does, in
// the order of their paths, one behind the other. A share `held_out` of them is held out: whole
// files at even distances, or the end of the text where there are too few. No paths: the headers of
// C++'s library, else Perl's modules. Throws UsageError for what cannot be read.
TextBytes read_text(const std::vector<std::string>& paths, double held_out);

}  // namespace longnet
