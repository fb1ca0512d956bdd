#include "trireme/kernels/draw.hpp"

#include "kernels/draw_functors.hpp"
#include "kernels/exec.hpp"

namespace trireme::kernels {
namespace {

template <template <class> class Functor>
void on_host(const char* name, const DrawArguments& arguments) {
  if (arguments.bf16) {
    exec::for_each_team(name, arguments.rows, Functor<uint16_t>{arguments});
  } else {
    exec::for_each_team(name, arguments.rows, Functor<float>{arguments});
  }
}

}  // namespace

const DrawKernels draws_on_host{
    [](const DrawArguments& arguments) { on_host<SummariseRow>("summarise draws", arguments); },
    [](const DrawArguments& arguments) { on_host<ChooseRow>("choose draws", arguments); }};

}  // namespace trireme::kernels
