// Reference numbers computed by others: cases.json and the tensors beside it, in the layout that
// tests/gold/parity has. TRIREME_PARITY_DIR points the tests at another folder of that layout.
//
//   for (const GoldenCase* c : Golden::instance().starting_with("gae.")) {
//     auto got = gae(c->input("rewards"), c->number("gamma").value());
//     EXPECT_TRUE(c->matches("advantages", got));
//   }
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::test {

struct Tolerance {
  double rtol = 0;
  double atol = 0;
  double outlier_atol = 0;      // no element may be farther off than this ...
  double outlier_fraction = 0;  // ... and at most this share of them beyond atol + rtol * |want|
};

// The outcome of comparing two tensors.
struct Comparison {
  double error = 0;     // largest |got - want| of all elements that count
  double share = 0;     // of the tolerance that was used up: more than 1 is a mismatch
  std::string problem;  // empty: within the tolerance
};

class GoldenCase {
 public:
  std::string name;
  std::string formula;  // "F1 F2"
  std::string function;
  std::string file;                                        // below the folder
  std::map<std::string, std::string, std::less<>> inputs;  // field -> key in the file
  std::map<std::string, std::string, std::less<>> outputs;
  std::map<std::string, Tolerance, std::less<>> tolerance;       // per output
  std::map<std::string, std::string, std::less<>> compare_mask;  // output -> input with the mask

  // Tensors as stored: f32 or i64, owned by the caller. They fail the test (throw) when the field
  // is missing.
  at::Tensor input(std::string_view field) const;
  at::Tensor output(std::string_view field) const;
  bool has_input(std::string_view field) const { return inputs.find(field) != inputs.end(); }
  bool has_output(std::string_view field) const { return outputs.find(field) != outputs.end(); }

  // Hyper-parameters by key, "norm/dp_size" for nested ones. nullopt when null, absent or of
  // another type.
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string> word(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::string> words(std::string_view key) const;

  // `got` (any float or integer type, same element count as the reference) against the output,
  // under the case's tolerance and compare_mask.
  Comparison compare(std::string_view field, const at::Tensor& got) const;
  // The same as an assertion; the message names the worst element.
  testing::AssertionResult matches(std::string_view field, const at::Tensor& got) const;

 private:
  friend class Golden;
  struct Hyper;
  std::shared_ptr<const Hyper> hyper_;
  std::filesystem::path folder_;
};

class Golden {
 public:
  // The cases of a folder of that layout. Throws when there is none.
  explicit Golden(std::filesystem::path folder);
  static const Golden& instance();  // those of folder(), read once
  // TRIREME_PARITY_DIR, else tests/gold/parity below TRIREME_SOURCE_DIR.
  static std::filesystem::path folder();

  const GoldenCase& at(std::string_view name) const;
  std::vector<const GoldenCase*> starting_with(
      std::string_view prefix) const;  // by name, in the file's order
  std::vector<const GoldenCase*> with_formula(
      std::string_view formula) const;                                  // one word, e.g. "F16"
  std::vector<const GoldenCase*> in_file(std::string_view stem) const;  // e.g. "policy"
  const std::vector<GoldenCase>& all() const { return cases_; }

 private:
  std::vector<GoldenCase> cases_;
};

// got against want under a tolerance; `mask` (may be undefined) selects the elements that count: it
// has want's shape or is one over its leading dimensions. A NaN where the reference has none is a
// mismatch.
Comparison compare(const at::Tensor& got, const at::Tensor& want, const Tolerance& tolerance,
                   const at::Tensor& mask);

}  // namespace trireme::test
