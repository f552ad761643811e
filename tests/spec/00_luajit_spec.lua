-- Comes first: under another Lua, or without the module, every later spec would test something else.
describe("the specs", function()
  it("run under LuaJIT", function()
    assert.is_table(jit)
    assert.is_truthy(jit.version:match("^LuaJIT"))
  end)

  it("find the module", function()
    assert.is_function(require("moonshift").engine)
  end)
end)
