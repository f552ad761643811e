"""OpenVINO's side of the model benchmark: OpenVINO GenAI makes its model of the GGUF file, and the runtime runs it, as
the pipeline would: the state holds keys and values (eight bits by default), sequences are rows of a batch, and only the
last token of each has logits. The same commands as model_bench.c, and nll, with logits of all tokens.
usage: openvino_side.py MODEL THREADS"""

import json
import math
import os
import random
import shutil
import sys
import tempfile
import time

import numpy
import openvino
import openvino.opset15 as ops
import openvino_genai
from peer_side import BATCH, obey


def read_model(path):
    """What the pipeline makes of the file; it saves that beside it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        shutil.copy(path, copy)
        openvino_genai.LLMPipeline(copy, "CPU", enable_save_ov_model=True)
        model = openvino.Core().read_model(os.path.join(folder, "openvino_model.xml"))
        return model.clone()


def last_token_only(model):
    """As the pipeline does: the head sees one row of each sequence."""
    head = model.get_results()[0].input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    last = ops.slice(head.input_value(0), [-1], [2**31 - 1], [1], [1])
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


class Side:
    def __init__(self, path, threads):
        self.random, self.depth, self.whole = random.Random(1), 0, None
        self.config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.core = openvino.Core()
        self.model = read_model(path)
        self.vocab = self.model.outputs[0].partial_shape[2].get_length()
        sliced = self.model.clone()
        last_token_only(sliced)
        self.request = self.core.compile_model(sliced, "CPU", self.config).create_infer_request()

    def run(self, request, ids):
        """A step of the same number of tokens for each sequence."""
        rows, n = ids.shape
        places = numpy.broadcast_to(numpy.arange(self.depth, self.depth + n), (rows, n))
        self.depth += n
        request.infer(
            {
                "input_ids": ids,
                "attention_mask": numpy.ones((rows, self.depth), numpy.int64),
                "position_ids": numpy.ascontiguousarray(places, numpy.int64),
                "beam_idx": numpy.arange(rows, dtype=numpy.int32),
            },
            share_inputs=True,
        )

    def step(self, rows, n):
        ids = [[self.random.randrange(self.vocab) for _ in range(n)] for _ in range(rows)]
        self.run(self.request, numpy.array(ids, numpy.int64))

    def begin(self, request):
        request.reset_state()
        self.depth = 0

    def fill(self, rows, depth):
        while self.depth < depth:
            self.step(rows, min(BATCH, depth - self.depth))

    def prefill(self, n):
        self.begin(self.request)
        begin = time.perf_counter()
        self.fill(1, n)
        return time.perf_counter() - begin

    def decode(self, n_seqs, depth, n):
        self.begin(self.request)
        self.fill(n_seqs, depth)
        begin = time.perf_counter()
        for _ in range(n):
            self.step(n_seqs, 1)
        return time.perf_counter() - begin

    def nll(self, path):
        """Nats a token of the ids in a file, and the likeliest token after each but the last."""
        with open(path) as f:
            ids = json.load(f)
        self.whole = self.whole or self.core.compile_model(self.model, "CPU", self.config).create_infer_request()
        self.begin(self.whole)
        total, best = 0.0, []
        for at in range(0, len(ids) - 1, 256):
            part = ids[at : min(at + 256, len(ids) - 1)]
            self.run(self.whole, numpy.array([part], numpy.int64))
            logits = self.whole.get_tensor("logits").data[0].astype(numpy.float64)
            for k in range(len(part)):
                most = logits[k].max()
                total -= logits[k][ids[at + k + 1]] - most - math.log(numpy.exp(logits[k] - most).sum())
                best.append(int(logits[k].argmax()))
        return total / (len(ids) - 1), best


obey(Side(sys.argv[1], int(sys.argv[2])), f"OpenVINO {openvino.__version__.split('-')[0]}, its default precision")
