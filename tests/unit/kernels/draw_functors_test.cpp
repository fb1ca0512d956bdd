// The draws that devices make (draw_functors.hpp), by one thread and by four, of whole rows and of
// three ranks' slices, against the host's (sampling.hpp).
#include "kernels/draw_functors.hpp"

#include <gtest/gtest.h>

#include "unit/kernels/draw_cases.hpp"
#include "unit/kernels/teams.hpp"

namespace trireme::kernels {
namespace {

template <class T>
void compare(bool one_thread) {
  const auto run = [&](int64_t teams, const auto& functor) {
    one_thread ? by_one(teams, functor) : by_four(teams, functor);
  };
  for (const int64_t ids : {5, 331, 4096, 9001}) {
    for (const int ranks : {1, 3}) {
      for (const bool forbid : {false, true}) {
        DrawStep<T> step(ids, ranks, forbid, {0.f, 0.31f, 0.77f, 0.9999999f});
        for (const DrawArguments& a : step.arguments) run(a.rows, SummariseRow<T>{a});
        for (const DrawArguments& a : step.arguments) run(a.rows, ChooseRow<T>{a});
        expect_draws_of_host(step);
      }
    }
  }
}

TEST(DrawFunctors, OneThreadDrawsAsTheHostDoes) {
  compare<float>(true);
  compare<uint16_t>(true);
}

TEST(DrawFunctors, ATeamDrawsAsTheHostDoes) {
  compare<float>(false);
  compare<uint16_t>(false);
}

}  // namespace
}  // namespace trireme::kernels
