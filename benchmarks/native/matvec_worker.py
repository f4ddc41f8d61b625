"""Another library's product of one token with matrices, as a worker process: one JSON request and reply per line.

    python matvec_worker.py onnxruntime|torch OUTPUTS INPUTS MATRICES      then {"times": 2} for each round

One thread. Every matrix is multiplied once, one after the other; the reply is {"wall_s": [...], "cpu_s": [...]}, summed over
matrices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter, process_time

import numpy as np

GROUP = 128


def onnxruntime_2_bit(num_outputs: int, num_inputs: int, num_matrices: int) -> Callable[[], object]:
    """MatMulNBits of 2 bits in groups of 128 with 8-bit activations, its highest `accuracy_level`."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    nodes, weights, outputs = [], [], []
    for i in range(num_matrices):
        codes = generator.integers(256, size=(num_outputs, num_inputs // GROUP, GROUP // 4), dtype=np.uint8)
        scales = np.full(num_outputs * num_inputs // GROUP, 0.02, np.float32)
        weights += [numpy_helper.from_array(codes, f"b{i}"), numpy_helper.from_array(scales, f"s{i}")]
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                ["x", f"b{i}", f"s{i}"],
                [f"y{i}"],
                domain="com.microsoft",
                K=num_inputs,
                N=num_outputs,
                bits=2,
                block_size=GROUP,
                accuracy_level=4,
            )
        )
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1, num_outputs]))
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, num_inputs])]
    graph = helper.make_graph(nodes, "products", given, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = generator.standard_normal((1, num_inputs)).astype(np.float32)
    return lambda: session.run(None, {"x": x})


def torch_dynamic_int8(num_outputs: int, num_inputs: int, num_matrices: int) -> Callable[[], object]:
    """Linear with 8-bit weights and dynamically rounded activations."""
    import torch
    from torch.ao.nn.quantized.dynamic import Linear

    torch.set_num_threads(1)
    layers = []
    for _ in range(num_matrices):
        layer = Linear(num_inputs, num_outputs)
        weight = torch.quantize_per_tensor(torch.randn(num_outputs, num_inputs) * 0.02, 0.001, 0, torch.qint8)
        layer.set_weight_bias(weight, None)
        layers.append(layer)
    x = torch.randn(1, num_inputs)

    def multiply() -> None:
        with torch.inference_mode():
            for layer in layers:
                layer(x)

    return multiply


def main() -> None:
    sizes = [int(size) for size in sys.argv[2:]]
    work = {"onnxruntime": onnxruntime_2_bit, "torch": torch_dynamic_int8}[sys.argv[1]](*sizes)
    for line in sys.stdin:
        wall_s, cpu_s = [], []
        for _ in range(json.loads(line)["times"]):
            wall, cpu = perf_counter(), process_time()
            work()
            wall_s.append(perf_counter() - wall)
            cpu_s.append(process_time() - cpu)
        print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
